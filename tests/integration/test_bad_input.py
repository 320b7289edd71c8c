"""Nothing that arrives on a port of ours stops a program, or makes it grow: bytes at random, broken
HTTP/2 and HTTP, bodies that are too large, too deep or cut off. And each mistake of a caller is
answered by the status that the documents promise, naming the field."""

import json
import random
import socket
import struct

import cluster
import harness
import pytest

MIB = 1 << 20


@pytest.fixture
def running(site):
    router = cluster.Router(site).start()
    engine = cluster.Engine(site, "engine-0").start()
    agent = cluster.Agent(site, engine, [router]).start()
    harness.wait_until(lambda: router.dump(engine.name).freshness == "EXACT", 10, "EXACT")
    return router, engine, agent


def send(port, data, linger=0.05):
    """Sends what the peer takes, reads a little, and hangs up without ceremony."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
        sock.settimeout(linger)
        try:
            sock.sendall(data)
            sock.recv(4096)
        except OSError:
            pass
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def frame(kind, flags, stream, payload):
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def attacks(rng):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    yield b""
    for size in (1, 17, 1000, 100_000):
        yield rng.randbytes(size)
        yield preface + rng.randbytes(size)
    yield preface[:11]
    yield preface + frame(1, 4, 1, rng.randbytes(200))  # headers that are no HPACK
    yield preface + frame(0, 0, 1, b"data for a stream that was never opened")
    yield preface + frame(8, 0, 0, struct.pack(">I", 0x7FFFFFFF)) * 3  # window overflow
    yield preface + struct.pack(">I", 0x00FFFFFF)[1:] + b"\0\0" + struct.pack(">I", 1)
    yield preface + frame(6, 0, 0, b"12345678") * 2000  # pings
    yield preface + b"".join(frame(3, 0, i, b"\0\0\0\0") for i in range(1, 4000, 2))  # resets
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)  # TLS hello
    yield b"GET /metrics HTTP/1.1\r\n"
    yield b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\n\r\n"
    yield b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)) + b"\r\n"
    yield b"POST /v1/pick HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n{"
    yield b"POST /v1/pick HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}"
    yield b"POST /v1/pick HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\nx"
    yield b"POST /v1/pick HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"model\""


def test_bytes_at_random_on_every_port(running):
    router, engine, agent = running
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    print(f"seed {seed}")
    ports = {
        "gRPC": (int(router.grpc.rpartition(":")[2]), router.program),
        "HTTP": (int(router.http.rpartition(":")[2]), router.program),
        "picks": (int(router.pick.rpartition(":")[2]), router.program),
        "agent": (agent.metrics_port, agent.program),
    }
    before = {name: program.memory_bytes() for name, (_, program) in ports.items()}
    for _ in range(3):
        for name, (port, program) in ports.items():
            for data in attacks(rng):
                send(port, data)
                assert program.running(), f"{name} port: ended after {data[:60]!r}"
    for name, (_, program) in ports.items():
        grown = program.memory_bytes() - before[name]
        assert grown < 64 * MIB, f"{name} port: {grown / MIB:.0f} MiB more"

    # All of it still works.
    engine.complete(range(100, 200))
    cluster.check_equal(router, engine, 16)
    assert pick(router, {"model": cluster.MODEL, "tokens": list(range(100, 200))})[0] == 200
    assert harness.http(f"http://127.0.0.1:{agent.metrics_port}/healthz")[0] == 200


def pick(router, body):
    return harness.http(router.http + "/v1/pick", body)


def test_mistakes_of_callers_are_named(running):
    router, engine, _ = running
    good = {"model": cluster.MODEL, "tokens": [1, 2, 3]}

    def refused(change, status, *words):
        body = change if isinstance(change, bytes) else {**good, **change}
        got, text = pick(router, body)
        assert got == status, f"{change!r:.200}: {got} {text[:300]}"
        for word in words:
            assert word in text, f"{change!r:.200}: no '{word}' in {text[:300]}"

    refused({"model": "no-such-model"}, 404, "no-such-model")
    refused({"model": ""}, 400, "model")
    refused({"policy": "fastest_please"}, 400, "policy", "marginal_cost")
    refused({"tokens": [-1]}, 400, "tokens")
    refused({"tokens": [1 << 32]}, 400, "tokens")
    refused({"tokens": "abc"}, 400, "tokens")
    refused({"tokens": None, "chain": {"hashes": [1], "block_size": 7}}, 400, "block_size")
    refused({"reservation_lease_ms": 3_600_001}, 400, "reservation_lease_ms")
    refused({"subset": ["10.0.0.1:1"]}, 503, "subset")
    for broken in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": "\xc3"}',
                   b"[" * 100_000, b'{"a":' * 50_000, b'{"model": 7}', b"{} {}"):  # fmt: skip
        refused(broken, 400)
    too_large = b'{"model": "' + b"x" * (9 * MIB) + b'"}'
    refused(too_large, 413)

    got, text = harness.http(router.http + "/v1/outcome", {"reservation_id": "12345", "kind": "FINISHED"})
    assert got == 404, text
    got, text = harness.http(router.http + "/v1/outcome", {"reservation_id": "x", "kind": "NEVER"})
    assert got == 400, text

    # Nothing of this is left in flight.
    workers = router.ctl("workers")
    assert workers["workers"][0]["targets"][0].get("inflight", 0) == 0
    assert pick(router, good)[0] == 200


def test_a_pool_without_a_worker_says_so(site):
    router = cluster.Router(site, extra="pools:\n  - name: empty\n").start()
    status, text = pick(router, {"model": "empty", "tokens": [1]})
    assert status == 503 and "no ready worker" in text, text


def test_a_worker_id_that_is_taken_and_a_block_size_that_does_not_fit(site):
    router = cluster.Router(site).start()
    first = cluster.Engine(site, "engine-0").start()
    cluster.Agent(site, first, [router]).start()
    harness.wait_until(lambda: router.dump("engine-0").freshness == "EXACT", 10, "EXACT")

    second = cluster.Engine(site, "engine-1").start()
    second.name = "engine-0"  # the same worker id
    rival = cluster.Agent(site, second, [router], state_file=False)
    rival.program.start()
    rival.program.wait(
        lambda: "engine-0" in rival.program.output() and "ALREADY_EXISTS" in rival.program.output(),
        10, "the refusal in its log",
    )  # fmt: skip

    odd = cluster.Engine(site, "engine-2", flags=["--block-size=24"]).start()
    misfit = cluster.Agent(site, odd, [router])
    misfit.program.start()
    misfit.program.wait(
        lambda: "FAILED_PRECONDITION" in misfit.program.output()
        and "24" in misfit.program.output() and "16" in misfit.program.output(),
        10, "the refusal in its log",
    )  # fmt: skip
    assert [w["worker_id"] for w in router.ctl("workers")["workers"]] == ["engine-0"]
    # The first one is none the worse.
    first.complete(range(100))
    cluster.check_equal(router, first, 16)


@pytest.mark.parametrize("text,words", [
    ("server:\n  grpc_adress: 127.0.0.1:0\n", ["grpc_adress", ":2"]),
    ("pool_defaults:\n  policy: best\n", ["policy", "best", "marginal_cost"]),
    ("server:\n  heavy_threads: -1\n", ["heavy_threads"]),
    ("server: [1, 2\n", [":"]),
    ("fleet:\n  worker_lease: forever\n", ["worker_lease", "forever"]),
    ("a: 1\nb: 2\n", ["a", "b"]),
])  # fmt: skip
def test_wrong_configuration_is_refused_with_the_line(site, text, words):
    path = site.file("bad.yaml", text)
    code, _, err = site.run("warmpath-router", [f"--config={path}", "--check-config"], check=False)
    assert code != 0
    assert "bad.yaml" in err, err
    for word in words:
        assert word in err, f"no '{word}' in {err}"


def test_a_port_that_is_taken_is_named(site):
    router = cluster.Router(site).start()
    code, _, err = site.run("warmpath-router", [f"--grpc-address={router.grpc}",
                            "--http-address=127.0.0.1:0"], check=False)  # fmt: skip
    assert code != 0 and router.grpc in err, err
    assert json.loads(harness.http(router.http + "/v1/pick", {"model": "x", "tokens": [1]})[1])

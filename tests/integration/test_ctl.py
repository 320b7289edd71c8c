"""warmpathctl as operators use it: what each command prints for people and as JSON, its exit codes, and
that a pick made by hand leaves no load behind."""

import json

import cluster
import harness
import pytest


@pytest.fixture
def running(site):
    router = cluster.Router(site, policy="marginal_cost").start()
    engine = cluster.Engine(site, "engine-0").start()
    cluster.Agent(site, engine, [router]).start()
    harness.wait_until(lambda: router.dump(engine.name).freshness == "EXACT", 10, "EXACT")
    engine.complete(range(100, 180))
    cluster.check_equal(router, engine, 16)
    return router, engine


TOKENS = "--tokens=" + ",".join(str(t) for t in range(100, 190))


def text(site, router, *arguments):
    """What the command prints for people, in lines."""
    _, out, _ = site.run("warmpathctl", [f"--router={router.grpc}", *arguments])
    return out.splitlines()


def columns(lines, row=1):
    """{header: cell} of one row of a table. Cells stand where their header does, or end there."""
    header, cells = lines[0].split("  "), lines[row].split()
    names = [name.strip() for name in header if name.strip()]
    assert len(names) == len(cells), lines[: row + 1]
    return dict(zip(names, cells))


def test_workers(site, running):
    router, engine = running
    row = columns(text(site, router, "workers"))
    assert row["WORKER"] == "engine-0" and row["ADDRESS"] == engine.address
    assert (row["POOL"], row["RANK"]) == (cluster.MODEL, "0")
    assert (row["STATE"], row["KNOWLEDGE"], row["INFLIGHT"]) == ("ready", "EXACT", "0")
    assert int(row["BLOCKS"]) >= 5
    for command in (["workers"], ["index", "stats"]):
        code, _, err = site.run(
            "warmpathctl", [f"--router={router.grpc}", *command, "--pool=none"], check=False
        )
        assert code == 1 and f"pool: 'none' is not here; known pools: {cluster.MODEL}" in err
    [worker] = router.ctl("workers")["workers"]
    assert worker["targets"][0]["freshness"] == "FRESHNESS_EXACT"


def test_pick_and_explain_leave_nothing_behind(site, running):
    router, engine = running
    model = f"--model={cluster.MODEL}"
    for command in ("pick", "explain"):
        lines = text(site, router, command, model, TOKENS)
        fields = dict(line.split(None, 1) for line in lines[:6])
        assert fields["endpoint"] == f"{engine.address} (engine-0/0)"
        assert fields["cached"] == "80 of 90 tokens"
        assert fields["knowledge"] == "EXACT"
        assert fields["policy"] == "marginal_cost (prefix)"
        if command == "explain":
            row = columns(lines[5:] if lines[5].startswith("TARGET") else lines[6:])
            assert (row["TARGET"], row["CACHED"], row["UNCACHED"]) == ("engine-0/0", "80", "10")
    assert router.ctl("explain", model, TOKENS)["reservation_id"] == "0"
    assert int(router.ctl("pick", model, TOKENS)["reservation_id"]) > 0
    assert columns(text(site, router, "workers"))["INFLIGHT"] == "0"

    # Without a prompt only load counts.
    assert router.ctl("pick", model)["reason"] == "short_prompt"
    kept = text(site, router, "pick", model, TOKENS, "--keep")
    assert kept[-1].endswith("(kept)")
    assert columns(text(site, router, "workers"))["INFLIGHT"] == "1"


def test_index_and_config(site, running):
    router, _ = running
    row = columns([line.replace("IN FLIGHT", "IN-FLIGHT").replace("AUDIT FAILURES", "AUDIT")
                   .replace(" GiB", "GiB").replace(" MiB", "MiB").replace(" KiB", "KiB")
                   for line in text(site, router, "index")])  # fmt: skip
    assert (row["POOL"], row["BLOCK"], row["REFUSED"], row["AUDIT"]) == (cluster.MODEL, "16", "0", "0")
    hashes = text(site, router, "index", "dump", "--worker=engine-0")
    assert len(hashes) == int(row["BLOCKS"]) and all(len(h) == 16 for h in hashes)
    assert hashes == sorted(hashes)
    lines = text(site, router, "config")
    assert lines[0].startswith("# warmpath-router ") and "marginal_cost" in lines[1]
    # The rest is the configuration: the router takes it as its own.
    path = site.file("effective.yaml", "\n".join(lines) + "\n")
    site.run("warmpath-router", [f"--config={path}", "--check-config"])


@pytest.mark.parametrize("arguments,code,word", [
    (["nonsense"], 2, "unknown command"),
    ([], 2, "no command"),
    (["drain"], 2, "worker id"),
    (["drain", "nobody"], 1, "nobody"),
    (["pick", "--model=nobody", "--tokens=1"], 1, "nobody"),
    (["pick", "--model=m", "--tokens=1,x"], 2, "x"),
    (["pick", "--every=1s"], 2, "--every"),
    (["pick", "--model=m", "--tokens=1", "--tenant=" + "t" * 257], 2, "tenant: has 257"),
    (["index", "dump", "--worker=engine-0", "--tier=paper"], 2, "paper"),
    (["workers", "--router=127.0.0.1:1", "--timeout=1s"], 1, "warmpathctl: "),
])  # fmt: skip
def test_mistakes_have_their_exit_code_and_message(site, arguments, code, word):
    router = cluster.Router(site).start()
    got, _, err = site.run("warmpathctl", [f"--router={router.grpc}", *arguments], check=False)
    assert got == code, err
    assert word in err


def test_json_is_one_document(site, running):
    router, _ = running
    for arguments in (["workers"], ["index"], ["config"], ["drain", "engine-0"],
                      ["drain", "engine-0", "--undo"]):  # fmt: skip
        _, out, _ = site.run("warmpathctl", [f"--router={router.grpc}", "--json", *arguments])
        assert isinstance(json.loads(out), dict)

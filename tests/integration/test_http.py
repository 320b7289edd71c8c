"""The HTTP listeners of the real program: many idle connections, slow clients, the end."""

import contextlib
import http.client
import socket
import statistics
import time

import cluster
import harness

IDLE = 500


def connect(url):
    host, port = url.split("//")[1].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def get(connection, path):
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status in (200, 503), (path, answer.status)
    return body


def median_ms(connection, path, count=101):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        get(connection, path)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def test_idle_connections_slow_neither_a_scrape_nor_a_health_check(site):
    router = cluster.Router(site).start()
    with contextlib.ExitStack() as stack:
        asking = {}
        for url, path in ((router.http, "/metrics"), (router.http, "/healthz"),
                          (router.pick, "/healthz")):  # fmt: skip
            connection = connect(url)
            stack.callback(connection.close)
            median_ms(connection, path, 20)  # warm
            asking[connection, path] = median_ms(connection, path)
        for url in (router.http, router.pick):
            for _ in range(IDLE):
                idle = connect(url)
                stack.callback(idle.close)
                get(idle, "/healthz")
        for (connection, path), alone in asking.items():
            crowded = median_ms(connection, path)
            print(f"{path}: {alone:.3f} ms alone, {crowded:.3f} ms beside {IDLE} idle connections")
            # Generous: the machine may be busy with something else.
            assert crowded < 3 * alone + 3, path

        # They do not keep the program from ending, either.
        start = time.monotonic()
        assert router.program.terminate() == 0
        assert time.monotonic() - start < 3


def test_a_slow_client_is_cut_off(site):
    router = cluster.Router(site, name="slow")
    config = (site.folder / "slow.yaml").read_text()
    (site.folder / "slow.yaml").write_text(
        config.replace("server:\n", "server:\n  http_request_timeout: 1s\n")
    )
    router.start()
    host, port = router.pick.split("//")[1].split(":")
    head = b"POST /v1/pick HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n"
    for beginning in (head[:15], head):
        with socket.create_connection((host, int(port)), timeout=5) as slow:
            slow.sendall(beginning)
            start = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() - start < 8:
                    slow.sendall(b"x")
                    slow.settimeout(0.1)
                    with contextlib.suppress(socket.timeout):
                        if slow.recv(100) == b"":
                            break
            assert time.monotonic() - start < 6, "it was allowed to go on"
    assert harness.http(router.pick + "/healthz")[0] == 200

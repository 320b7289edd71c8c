"""warmpath-router as a program: ports file, shutdown, printed configuration, idle cost."""

import json
import socket
import time

import harness


def start_router(site, config="", label="router"):
    path = site.file(f"{label}.yaml", config)
    ports = site.folder / f"{label}.ports"
    router = site.start(
        "warmpath-router",
        ["--config", path, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
         "--ports-file", ports],
        ready=ports.exists, label=label,
    )  # fmt: skip
    return router, json.loads(ports.read_text())


def test_ports_file_and_log_name_the_chosen_ports(site):
    router, ports = start_router(site)
    assert harness.accepts_connections(ports["grpc"])
    assert harness.http(f"http://127.0.0.1:{ports['http']}/healthz") == (200, "ok\n")
    assert f"grpc={ports['grpc']} http={ports['http']}" in router.output()
    assert router.terminate() == 0


def test_sigterm_turns_unready_waits_and_ends_with_zero(site):
    router, ports = start_router(site, "server: {drain_delay: 700ms, drain_deadline: 1s}\n")
    # A client that keeps its connection open must not hold the process.
    idle = socket.create_connection(("127.0.0.1", ports["grpc"]))
    start = time.monotonic()
    assert router.terminate() == 0
    took = time.monotonic() - start
    assert 0.6 < took < 6, took
    assert "draining: ending streams" in router.output()
    idle.close()


def test_the_printed_configuration_is_accepted_again(site):
    _, text, _ = site.run("warmpath-router", ["--print-config", "--log-level", "warn"])
    path = site.file("printed.yaml", text)
    _, again, _ = site.run("warmpath-router", ["--config", path, "--print-config"])
    assert text == again
    assert "level: warn" in text
    site.run("warmpath-router", ["--config", path, "--check-config"])


def test_an_idle_router_uses_next_to_no_cpu(site):
    router, _ = start_router(site)
    time.sleep(0.5)

    def cpu_seconds():
        fields = open(f"/proc/{router.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    before = cpu_seconds()
    time.sleep(3)
    assert cpu_seconds() - before < 0.3, "more than 10 % of a core while idle"


def test_unknown_flags_are_refused(site):
    code, _, err = site.run("warmpath-router", ["--no-such-flag"], check=False)
    assert code == 2 and "--help" in err

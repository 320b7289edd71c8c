"""SIGTERM: ready turns off first, open work ends, and the process leaves in time with 0."""

import signal
import threading
import time

import cluster
import harness
import pytest


@pytest.fixture
def running(site):
    router = cluster.Router(site, drain_delay="1s").start()
    engine = cluster.Engine(site, "engine-0").start()
    agent = cluster.Agent(site, engine, [router]).start()
    harness.wait_until(lambda: router.dump(engine.name).freshness == "EXACT", 10, "EXACT")
    return router, engine, agent


def test_the_router_drains(running):
    router, engine, agent = running
    assert harness.http(router.http + "/readyz")[0] == 200
    codes = []
    stop = threading.Event()

    def keep_picking():
        body = {"model": cluster.MODEL, "tokens": list(range(64))}
        while not stop.is_set():
            try:
                codes.append((time.monotonic(), harness.http(router.http + "/v1/pick", body)[0]))
            except OSError:
                return

    picker = threading.Thread(target=keep_picking)
    picker.start()
    begin = time.monotonic()
    router.program.process.send_signal(signal.SIGTERM)
    # During drain_delay load balancers see that it is not ready, and picks are still answered.
    harness.wait_until(lambda: harness.http(router.http + "/readyz")[0] == 503, 0.8, "unready")
    unready = time.monotonic()
    assert router.program.running()
    assert router.program.terminate(timeout=10) == 0
    took = time.monotonic() - begin
    stop.set()
    picker.join()
    # Agents' streams are open all the time: they must not hold up the end.
    assert took < 6, f"{took:.1f} s"
    late = [code for at, code in codes if unready < at < begin + 0.9]
    assert late and set(late) == {200}, late

    # The agent goes on, and comes back to a new router by itself.
    assert agent.program.running()
    engine.complete(range(300, 400))
    router.program.restart()
    cluster.check_equal(router, engine, 16)


def test_agent_and_engine_end_at_once(running):
    router, engine, agent = running
    begin = time.monotonic()
    assert agent.program.terminate(timeout=5) == 0
    assert engine.program.terminate(timeout=5) == 0
    assert time.monotonic() - begin < 5
    harness.wait_until(
        lambda: router.dump("engine-0").cause == "agent_gone", 5, "the loss to be seen"
    )


def test_a_second_signal_changes_nothing(running):
    router = running[0]
    for _ in range(3):
        router.program.process.send_signal(signal.SIGTERM)
    assert router.program.terminate(timeout=10) == 0


def test_a_drained_worker_gets_no_picks(site):
    router = cluster.Router(site, policy="round_robin").start()
    engines = [cluster.Engine(site, f"engine-{i}").start() for i in range(2)]
    for engine in engines:
        cluster.Agent(site, engine, [router]).start()
        harness.wait_until(lambda e=engine: router.dump(e.name).freshness == "EXACT", 10, "EXACT")

    def picked(count=6):
        body = {"model": cluster.MODEL, "tokens": [1, 2, 3]}
        answers = [harness.http_json(router.http + "/v1/pick", body) for _ in range(count)]
        return {a["endpoint"]["target"]["worker_id"] for a in answers}

    assert picked() == {"engine-0", "engine-1"}
    router.ctl("drain", "engine-0")
    assert picked() == {"engine-1"}
    router.ctl("drain", "engine-0", "--undo")
    assert picked() == {"engine-0", "engine-1"}
    router.ctl("drain", "engine-0")
    router.ctl("drain", "engine-1")
    status, text = harness.http(router.http + "/v1/pick", {"model": cluster.MODEL, "tokens": [1]})
    assert status == 503 and "no ready worker" in text

"""The router's index equals what the engines really hold: after load with evictions, after each kind
of process was killed, after events were lost, and at every moment at which it says EXACT."""

import cluster
import harness
import pytest

CASES = [(16, 1), (64, 1), (16, 2), (64, 2)]


def load(engine, prompts, count, threads=8):
    requests = []
    while len(requests) < count:
        rank = len(requests) % engine.ranks
        # Some come four times at once: the engine then holds copies of equal blocks.
        requests += [(prompts.next(), rank)] * (4 if prompts.rng.random() < 0.1 else 1)
    cluster.run_parallel(lambda r: engine.complete(r[0], rank=r[1]), requests, threads)


@pytest.fixture
def fleet(site):
    """make(block_size, ranks, replay) -> (router, engine, agent), all running."""

    def make(block_size=16, ranks=1, replay=True, blocks=300, speed=2):
        router = cluster.Router(site, block_size=block_size).start()
        # Slow enough for a load of some seconds, of which the sampler sees many states.
        engine = cluster.Engine(
            site, "engine-0", ranks=ranks, replay=replay, blocks=blocks, speed=speed
        ).start()
        agent = cluster.Agent(site, engine, [router]).start()

        def connected():
            dumps = [router.dump(engine.name, rank) for rank in range(ranks)]
            # An engine that can not replay and has not spoken yet might have spoken before.
            return all(d.freshness == "EXACT" or d.cause == "silent" for d in dumps)

        harness.wait_until(connected, 10, "the first snapshot")
        return router, engine, agent

    return make


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_evictions(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks)
    prompts = cluster.Prompts(seed=block_size + ranks)
    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, prompts, 150)
        found = cluster.check_equal(router, engine, block_size)
    # The engine evicts tails first. The message that named its last sequence said so too.
    assert router.may_have_holes(engine.name) == [False] * ranks
    assert len(sampler.exact_sequences) > 10, "the sampler saw next to nothing"
    for rank, dump in found.items():
        assert len(dump.hashes) > 20, f"rank {rank}: the test compared next to nothing"
        state = engine.state(rank)
        assert state["last_seq"] > 30
        assert state["prefix_hit_tokens"] > 0


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_the_router_was_killed(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks)
    prompts = cluster.Prompts(seed=1)
    with cluster.Sampler(site, router, engine, block_size):
        load(engine, prompts, 60)
        router.program.kill()
        load(engine, prompts, 30)
        router.program.restart()
        cluster.check_equal(router, engine, block_size, timeout=5)
        assert router.may_have_holes(engine.name) == [False] * ranks
        load(engine, prompts, 30)
        cluster.check_equal(router, engine, block_size)
        assert router.may_have_holes(engine.name) == [False] * ranks


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_the_agent_was_killed(site, fleet, block_size, ranks):
    router, engine, agent = fleet(block_size, ranks)
    prompts = cluster.Prompts(seed=2)
    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, prompts, 60)
        agent.program.kill()
        load(engine, prompts, 30)
        harness.wait_until(
            lambda: router.may_have_holes(engine.name) == [True] * ranks, 5, "doubt without an agent"
        )
        agent.program.restart()
        cluster.check_equal(router, engine, block_size, timeout=5)
        assert router.may_have_holes(engine.name) == [False] * ranks, "the agent went on from its file"
        load(engine, prompts, 30)
        cluster.check_equal(router, engine, block_size)
        assert router.may_have_holes(engine.name) == [False] * ranks
    assert sampler.freshness["DEGRADED"] > 0, "the loss of the agent was never seen"


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_the_engine_was_killed_with_replay(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks)
    prompts = cluster.Prompts(seed=3)
    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, prompts, 60)
        before = cluster.check_equal(router, engine, block_size)
        sampler.before_kill(before[0])
        engine.program.kill()
        engine.program.restart()
        # More requests than before the kill: the new process passes the sequence of the old one.
        load(engine, prompts, 100)
        after = cluster.check_equal(router, engine, block_size, timeout=5)
    assert len(sampler.exact_sequences) > 10, "the sampler saw next to nothing"
    assert after[0].epoch > before[0].epoch
    assert after[0].hashes and after[0].hashes != before[0].hashes


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_an_idle_engine_was_killed(site, fleet, block_size, ranks):
    """No event of the new process ever comes: the old blocks must go all the same."""
    router, engine, _ = fleet(block_size, ranks)
    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, cluster.Prompts(seed=4), 40)
        before = cluster.check_equal(router, engine, block_size)
        assert before[0].hashes
        sampler.before_kill(before[0])
        engine.program.kill()
        engine.program.restart()
        harness.wait_until(
            lambda: not any(router.dump(engine.name, rank).hashes for rank in range(ranks)),
            5, "the blocks of the dead process to go",
        )  # fmt: skip


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_the_engine_was_killed_without_replay(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks, replay=False)
    prompts = cluster.Prompts(seed=5)

    def settled():
        """Equal if the new process's sequence 0 was seen, else DEGRADED(missed_start)."""
        for rank in range(ranks):
            dump = router.dump(engine.name, rank)
            if dump.engine_seq != engine.state(rank)["last_seq"]:
                return False
            if dump.freshness == "DEGRADED" and dump.cause == "missed_start":
                continue
            if dump.freshness != "EXACT" or dump.hashes != engine.held(block_size, rank):
                return False
        return True

    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, prompts, 60)
        before = cluster.check_equal(router, engine, block_size)
        sampler.before_kill(before[0])
        engine.program.kill()
        engine.program.restart()
        load(engine, prompts, 60)
        harness.wait_until(lambda: cluster.at_rest(engine), 10, "rest")
        harness.wait_until(settled, 5, "the index to be right, or to say that it missed the start")


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_one_percent_of_the_events_was_lost(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks, speed=20)
    prompts = cluster.Prompts(seed=6)
    with cluster.Sampler(site, router, engine, block_size):
        engine.drop(rate=0.01)
        for _ in range(20):
            load(engine, prompts, 200 * ranks, threads=4)
            if all(len(engine.state(rank)["dropped_seqs"]) >= 3 for rank in range(ranks)):
                break
        engine.drop(rate=0)
        harness.wait_until(lambda: cluster.at_rest(engine), 10, "rest")
        # The last message of all, after which nothing follows that would show the hole.
        engine.drop(next=1)
        for rank in range(ranks):
            engine.complete(prompts.tokens(80), max_tokens=1, rank=rank)
        cluster.check_equal(router, engine, block_size, timeout=5)
    for rank in range(ranks):
        state = engine.state(rank)
        assert state["last_seq"] in state["dropped_seqs"], "the last message was not lost"
        assert len(state["dropped_seqs"]) >= 4


@pytest.mark.parametrize("block_size,ranks", CASES)
def test_after_the_cache_was_cleared(site, fleet, block_size, ranks):
    router, engine, _ = fleet(block_size, ranks)
    prompts = cluster.Prompts(seed=8)
    with cluster.Sampler(site, router, engine, block_size) as sampler:
        load(engine, prompts, 40)
        assert cluster.check_equal(router, engine, block_size)[0].hashes
        engine.reset_cache()
        cleared = cluster.check_equal(router, engine, block_size)
        assert not any(dump.hashes for dump in cleared.values())
        load(engine, prompts, 40)
        cluster.check_equal(router, engine, block_size)
    assert set(sampler.freshness) == {"EXACT"}, sampler.freshness


def test_a_gap_without_replay_heals_when_the_cache_has_turned_over(site, fleet):
    router, engine, _ = fleet(replay=False, blocks=120)
    prompts = cluster.Prompts(seed=9)
    with cluster.Sampler(site, router, engine, 16) as sampler:
        load(engine, prompts, 30)
        cluster.check_equal(router, engine, 16)
        engine.drop(next=3)
        load(engine, prompts, 12)
        dump = harness.wait_until(
            lambda: (d := router.dump(engine.name)).freshness == "DEGRADED" and d, 5, "the gap"
        )
        assert dump.cause == "gap"
        workers = router.ctl("workers")
        causes = workers["workers"][0]["targets"][0]["causes"]
        assert len(causes) == 1 and "gap" in causes[0]["cause"].lower()
        assert len(causes[0]["remedy"]) > 20

        def healed():
            load(engine, prompts, 10)
            harness.wait_until(lambda: cluster.at_rest(engine), 10, "rest")
            return router.dump(engine.name).freshness == "EXACT"

        harness.wait_until(healed, 60, "nothing from before the gap to be left")
        cluster.check_equal(router, engine, 16)
    assert sampler.freshness["DEGRADED"] > 0


def test_two_routers_of_one_agent(site):
    routers = [cluster.Router(site, f"router-{i}").start() for i in range(2)]
    engine = cluster.Engine(site, "engine-0").start()
    cluster.Agent(site, engine, routers).start()
    prompts = cluster.Prompts(seed=10)
    load(engine, prompts, 20)
    for router in routers:
        cluster.check_equal(router, engine, 16)
    routers[0].program.kill()
    load(engine, prompts, 20)
    cluster.check_equal(routers[1], engine, 16)
    routers[0].program.restart()
    cluster.check_equal(routers[0], engine, 16)

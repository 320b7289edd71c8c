"""The main job, small: one workload through a live router to real engines, under round_robin and under
marginal_cost. scripts/demo is the same at full size."""

import json

import cluster

ENGINES = 4
SPEED = 8
WORKLOAD = [
    "--seed=1", "--chats=16", "--turns=6", "--agent-loops=0", f"--engines={ENGINES}",
    f"--speed-factor={SPEED}", "--block-size=16", "--utilisation=0.3",
]  # fmt: skip


def run(site, policy, blocks):
    """Fresh caches, the whole workload; returns what warmpath-replay measured."""
    router = cluster.Router(site, f"{policy}-router", policy=policy).start()
    fleet = []
    for i in range(ENGINES):
        engine = cluster.Engine(site, f"{policy}-engine{i}", blocks=blocks, speed=SPEED).start()
        fleet.append((engine, cluster.Agent(site, engine, [router]).start()))
    for engine, _ in fleet:
        cluster.check_equal(router, engine, 16, timeout=10)
    result = site.folder / f"{policy}.json"
    site.run("warmpath-replay",
             ["live", f"--router={router.grpc}", f"--model={cluster.MODEL}", f"--policy={policy}",
              f"--json={result}", "--progress=false", *WORKLOAD], timeout=120)  # fmt: skip
    # What the router counted is what the driver saw, and nothing is left open.
    measured = json.loads(result.read_text())["policies"][policy]
    metrics = router.metrics()
    for name, value in [
        ("warmpath_predicted_cached_tokens_total", measured["predicted_cached_tokens"]),
        ("warmpath_actual_cached_tokens_total", measured["actual_cached_tokens"]),
        ("warmpath_reservations_open", 0),
    ]:
        line = f'{name}{{pool="{cluster.MODEL}"}} {value}'
        assert line in metrics.splitlines(), f"no '{line}' among\n" + "\n".join(
            li for li in metrics.splitlines() if li.startswith(name)
        )
    for engine, agent in fleet:
        cluster.check_equal(router, engine, 16)
        agent.program.kill()
        engine.program.kill()
    return measured


def test_marginal_cost_finds_the_hits_that_round_robin_does_not(site):
    described = site.folder / "workload.json"
    site.run("warmpath-replay", ["describe", f"--json={described}", *WORKLOAD])
    workload = json.loads(described.read_text())
    results = {
        # Caches that hold it all: what a pick promised is not evicted before the engine comes to it.
        policy: run(site, policy, workload["distinct_blocks"])
        for policy in ("round_robin", "marginal_cost")
    }
    print(json.dumps(results, indent=1))
    for policy, r in results.items():
        assert r["errors"] == 0, f"{policy}: {r['first_error']}"
        assert r["requests"] == workload["requests"]
        # Predictions come true, whoever chooses.
        actual = r["actual_cached_tokens"]
        assert abs(r["predicted_cached_tokens"] - actual) <= 0.02 * actual, policy
        assert r["prediction_mae_tokens"] <= 16, policy
    cost, turns = results["marginal_cost"], results["round_robin"]
    assert cost["token_hit_rate"] > 1.3 * turns["token_hit_rate"]
    assert cost["ttft_mean_ms"] < turns["ttft_mean_ms"]

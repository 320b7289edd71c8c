"""What `warmpath-replay sim` writes is enough to repeat the run."""

import json

WORKLOAD = ["--chats=8", "--turns=4", "--agent-loops=0", "--workers=2", "--load=0.5",
            "--policies=marginal_cost", "--progress=false"]  # fmt: skip


def sim(site, *flags):
    result = site.folder / "sim.json"
    site.run("warmpath-replay", ["sim", f"--json={result}", *WORKLOAD, *flags])
    written = json.loads(result.read_text())
    return written["settings"], written["cells"][0]


def test_settings_name_tenants_and_what_was_left_out(site):
    settings, cell = sim(site, "--seed=3")
    assert settings["skip"] == 0 and settings["seed"] == 3
    assert "tenants" not in settings and "tenants" not in cell
    settings, cell = sim(site, "--tenants=3", "--tenant-zipf=0.5", "--tenant-fairness",
                         "--batch-share=0.2", "--batch-prompt=4096", "--batch-output=16",
                         "--batch-burst=2", "--skip=5")  # fmt: skip
    wanted = {"tenants": 3, "tenant_zipf": 0.5, "tenant_fairness": True, "batch_share": 0.2,
              "batch_prompt": 4096, "batch_output": 16, "batch_burst": 2, "skip": 5}  # fmt: skip
    assert {name: settings.get(name) for name in wanted} == wanted
    assert len(cell["tenants"]) == 4


def test_the_run_without_the_batch_tenant_is_compared_over_the_same_stretch(site):
    # Of the last four requests one is the batch tenant's; the others are the last three without it.
    batch = ["--batch-share=0.1", "--batch-prompt=4096"]
    _, all_of_it = sim(site, *batch)
    _, cell = sim(site, *batch, f"--skip={all_of_it['requests'] - 4}")
    ordinary, heavy = cell["tenants"]
    assert (ordinary["requests"], heavy["requests"]) == (3, 1)
    _, all_of_it = sim(site)
    _, alone = sim(site, f"--skip={all_of_it['requests'] - 3}")
    assert alone["requests"] == 3
    assert abs(ordinary["slowdown"] - ordinary["ttft_mean_s"] / alone["ttft_mean_s"]) < 1e-6

"""What scripts/demo runs once everything is built; see there for the options."""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "integration"))
import harness  # noqa: E402 - found through the line above

ENGINES = 4
BLOCK = 16
MODEL = "warmpath-demo"
# Of the distinct blocks of the workload, the share that one engine's cache holds.
CACHE_SHARE = 3


def caller_path(name):
    """A file named in an argument, seen from where the script was called."""
    return str(pathlib.Path(os.environ.get("WARMPATH_CALLER_DIR", ".")) / name)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/demo", add_help=False)
    parser.add_argument("--json", type=caller_path)
    parser.add_argument("--trace", type=caller_path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--policies", default="round_robin,marginal_cost")
    parser.add_argument("--speed-factor", type=float)
    parser.add_argument("--keep-logs", type=caller_path)
    arguments = parser.parse_args()
    if arguments.speed_factor is None:
        # The generated workload takes about half a minute a policy; a trace's long prompts cost
        # this machine more for each second of engine time.
        arguments.speed_factor = 14.0 if arguments.trace is None else 20.0
    return arguments


def workload_flags(arguments):
    flags = [f"--speed-factor={arguments.speed_factor}", f"--engines={ENGINES}",
             f"--block-size={BLOCK}", "--utilisation=0.6", "--seed=1"]  # fmt: skip
    if arguments.trace:
        flags += [f"--trace={arguments.trace}", f"--requests={arguments.requests}"]
    return flags


class Fleet:
    """Router, engines and agents of one run, on free ports."""

    def __init__(self, site, policy, blocks, speed_factor, agent_flags=()):
        self.site = site
        self.label = policy
        self._agent_flags = agent_flags
        config = site.file(f"{policy}.yaml",
                           "server:\n  grpc_address: 127.0.0.1:0\n  http_address: 127.0.0.1:0\n"
                           f"  drain_delay: 0s\npool_defaults:\n  routing_block_size: {BLOCK}\n"
                           f"  policy: {policy}\n")  # fmt: skip
        ports = site.folder / f"{policy}-router.json"
        ports.unlink(missing_ok=True)  # of an earlier run with the same --keep-logs
        self.router = site.start("warmpath-router",
                                 [f"--config={config}", f"--ports-file={ports}"],
                                 ready=ports.exists, label=f"{policy}-router")  # fmt: skip
        self.grpc = f"127.0.0.1:{json.loads(ports.read_text())['grpc']}"
        engines = [self.start_engine(i, blocks, speed_factor) for i in range(ENGINES)]
        for i, engine in enumerate(engines):
            self.start_agent(i, engine)
        self.wait_exact()

    def start_engine(self, index, blocks, speed_factor):
        engine = self.site.program("warmpath-engine",
                                   [f"--model={MODEL}", f"--blocks={blocks}",
                                    f"--block-size={BLOCK}", f"--speed-factor={speed_factor}",
                                    "--replay-endpoint=tcp://127.0.0.1:0", "--history-batches=1", "--stream-interval=16"],
                                   label=f"{self.label}-engine{index}")  # fmt: skip
        engine.start(ready=lambda: '"http"' in engine.output())
        line = next(li for li in engine.output().splitlines() if li.startswith('{"http"'))
        return json.loads(line)

    def start_agent(self, index, engine):
        name = f"{self.label}-agent{index}"
        self.site.start("warmpath-agent",
                        [f"--router={self.grpc}", f"--worker-id=engine{index}",
                         f"--engine-http={engine['http']}", f"--events={engine['events'][0]}",
                         f"--replay={engine['replay'][0]}", "--metrics-port=0",
                         f"--state-file={self.site.folder / name}.state", *self._agent_flags],
                        label=name)  # fmt: skip

    def wait_exact(self):
        def exact():
            _, out, _ = self.site.run("warmpathctl",
                                      [f"--router={self.grpc}", "--json", "workers"])  # fmt: skip
            targets = [t for w in json.loads(out)["workers"] for t in w["targets"]]
            return len(targets) == ENGINES and all(
                t["freshness"] == "FRESHNESS_EXACT" and t["lifecycle"] == "LIFECYCLE_READY"
                for t in targets)  # fmt: skip

        harness.wait_until(exact, 30, f"{ENGINES} workers to be READY and EXACT", pause=0.1)


def run_policy(folder, policy, blocks, arguments):
    site = harness.Site(folder)
    try:
        fleet = Fleet(site, policy, blocks, arguments.speed_factor)
        result = site.folder / f"{policy}.json"
        replay = site.program("warmpath-replay",
                              ["live", f"--router={fleet.grpc}", f"--model={MODEL}",
                               f"--policy={policy}", f"--json={result}",
                               *workload_flags(arguments)],
                              label=f"{policy}-replay")  # fmt: skip
        replay.start()
        show_progress(replay, policy)
        if replay.process.returncode != 0:
            raise harness.Failure(f"warmpath-replay failed:\n{harness.tail(replay.log())}")
        return json.loads(result.read_text())["policies"][policy]
    except harness.Failure:
        print(site.logs(), file=sys.stderr)
        raise
    finally:
        site.close()


def show_progress(replay, policy):
    """The driver's own progress lines, from its log, as they come."""
    shown = 0
    start = time.monotonic()
    while replay.running():
        lines = [li for li in replay.output().splitlines() if li.startswith(policy)]
        for line in lines[shown:]:
            print(line, file=sys.stderr)
        shown = len(lines)
        if time.monotonic() - start > 1800:
            raise harness.Failure(f"{policy} did not end within 30 minutes")
        time.sleep(0.2)


def print_table(policies):
    row = "{:<16}{:>9}{:>8}{:>10}{:>13}{:>9}{:>9}{:>10}{:>12}{:>12}{:>9}"
    print(row.format("policy", "requests", "errors", "hit rate", "TTFT mean ms", "p50", "p99",
                     "busiest", "predicted", "actual", "MAE"))  # fmt: skip
    for name, p in policies.items():
        print(row.format(name, p["requests"], p["errors"], f"{p['token_hit_rate']:.1%}",
                         f"{p['ttft_mean_ms']:.1f}", f"{p['ttft_p50_ms']:.1f}",
                         f"{p['ttft_p99_ms']:.1f}", f"{p['busiest_worker_share']:.1%}",
                         p["predicted_cached_tokens"], p["actual_cached_tokens"],
                         f"{p['prediction_mae_tokens']:.2f}"))  # fmt: skip


def main():
    arguments = parse_arguments()
    temporary = None
    if arguments.keep_logs:
        folder = pathlib.Path(arguments.keep_logs)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        temporary = tempfile.TemporaryDirectory(prefix="warmpath-demo-")
        folder = pathlib.Path(temporary.name)
    site = harness.Site(folder)
    described = folder / "workload.json"
    _, line, _ = site.run("warmpath-replay",
                          ["describe", f"--json={described}", *workload_flags(arguments)],
                          timeout=120)  # fmt: skip
    workload = json.loads(described.read_text())
    blocks = workload["distinct_blocks"] // CACHE_SHARE
    workload.update(engines=ENGINES, blocks_per_engine=blocks, routing_block_size=BLOCK,
                    speed_factor=arguments.speed_factor)  # fmt: skip
    policies = {}
    for policy in arguments.policies.split(","):
        policies[policy] = run_policy(folder, policy, blocks, arguments)
    print_table(policies)
    print(line.strip() + f"; {ENGINES} engines, each with {blocks} blocks, "
          f"{arguments.speed_factor:g} times as fast as a 32B model on two H100")  # fmt: skip
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"workload": workload, "policies": policies}, indent=1) + "\n")  # fmt: skip
    if temporary is not None:
        temporary.cleanup()
    if any(p["errors"] for p in policies.values()):
        first = next(p["first_error"] for p in policies.values() if p["errors"])
        print(f"some requests failed, the first with: {first}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

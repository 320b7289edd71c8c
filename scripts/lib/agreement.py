"""What scripts/agreement runs once everything is built; see there for the options."""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import threading

import demo
import harness

WORKERS = demo.ENGINES
BLOCK = demo.BLOCK
# Requests per second and worker that the simulator calls load 1, for engines of speed 1.
FULL_RATE = 0.61737
LOAD = 0.7
PREFILL_TOKENS_PER_S = 16_000  # of the profile 32b-2xh100
# Of this pipeline on one machine: from an engine's step to the router's index, and from a first
# token or an end to the router. They do not shrink with the engines' speed, so neither is scaled.
EVENT_LAG_MS = 5
SIGNAL_LAG_MS = 2

MOST_POINTS = 2.0
MOST_TTFT = 0.15
MOST_CPU = 0.70

AGREE, DISAGREE, VOID = 0, 1, 3


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/agreement", add_help=False)
    parser.add_argument("--trace", required=True, type=demo.caller_path)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--policy", default="marginal_cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed-factor", type=float, default=5.0)
    parser.add_argument("--json", type=demo.caller_path)
    parser.add_argument("--keep-logs", type=demo.caller_path)
    arguments = parser.parse_args()
    if arguments.rate is None:
        arguments.rate = LOAD * FULL_RATE * WORKERS * arguments.speed_factor
    return arguments


class ProcessorTime:
    """The share of all processors' time that was not idle, over the whole run and in its busiest
    window, from /proc/stat."""

    WINDOW = 5.0  # seconds

    def __init__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.mean = 0.0
        self.busiest = 0.0

    @staticmethod
    def _read():
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        idle = fields[3] + fields[4]  # waiting for a disk included
        return sum(fields), sum(fields) - idle

    @staticmethod
    def _share(before, after):
        total = after[0] - before[0]
        return (after[1] - before[1]) / total if total > 0 else 0.0

    def _watch(self):
        last = self._first
        while not self._stop.wait(self.WINDOW):
            now = self._read()
            self.busiest = max(self.busiest, self._share(last, now))
            last = now

    def __enter__(self):
        self._first = self._read()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.mean = self._share(self._first, self._read())
        self.busiest = max(self.busiest, self.mean)


def run_live(folder, arguments, flags):
    site = harness.Site(folder)
    try:
        rate = PREFILL_TOKENS_PER_S * arguments.speed_factor
        # blocks=0: the profile's capacity, as in the simulator, which also registers the rate.
        fleet = demo.Fleet(site, arguments.policy, 0, arguments.speed_factor,
                           agent_flags=[f"--prefill-tokens-per-s={rate:g}",
                                        "--scrape-interval-ms=100"])  # fmt: skip
        result = site.folder / "live.json"
        replay = site.program("warmpath-replay",
                              ["live", f"--router={fleet.grpc}", f"--model={demo.MODEL}",
                               f"--json={result}", *flags],
                              label="live")  # fmt: skip
        with ProcessorTime() as processors:
            replay.start()
            demo.show_progress(replay, "default")
            replay.process.wait()
        if replay.process.returncode != 0:
            raise harness.Failure(f"warmpath-replay live failed:\n{harness.tail(replay.log())}")
        live = json.loads(result.read_text())
        summary = live["policies"]["default"]
        return live["workload"], {
            "requests": summary["requests"], "errors": summary["errors"],
            "token_hit_rate": summary["token_hit_rate"],
            "ttft_mean_s": summary["ttft_mean_ms"] / 1e3,
            "ttft_p50_s": summary["ttft_p50_ms"] / 1e3,
            "ttft_p90_s": summary["ttft_p90_ms"] / 1e3,
            "ttft_p99_s": summary["ttft_p99_ms"] / 1e3,
            "tpot_mean_ms": summary["tpot_mean_ms"],
            "busiest_worker_share": summary["busiest_worker_share"],
            "driver_late_p99_ms": summary["driver_late_p99_ms"],
        }, processors  # fmt: skip
    except harness.Failure:
        print(site.logs(), file=sys.stderr)
        raise
    finally:
        site.close()


def run_sim(folder, arguments, flags):
    site = harness.Site(folder)
    result = site.folder / "sim.json"
    # next_turns is off since a live driver can not know the answers that a trace's prompts quote.
    site.run("warmpath-replay",
             ["sim", f"--policies={arguments.policy}", f"--workers={WORKERS}", "--next-turns=false",
              f"--event-lag-ms={EVENT_LAG_MS}", f"--signal-lag-ms={SIGNAL_LAG_MS}",
              f"--json={result}", "--progress=false", *flags],
             timeout=600)  # fmt: skip
    cell = json.loads(result.read_text())["cells"][0]
    names = ("requests", "token_hit_rate", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s",
             "tpot_mean_ms")  # fmt: skip
    return {**{name: cell[name] for name in names}, "busiest_worker_share": cell["busiest_share"]}


def compare(live, sim):
    """Live against the simulator: hit rate in points, the others as shares of the simulator's."""
    out = {"hit_rate_points": 100 * (live["token_hit_rate"] - sim["token_hit_rate"])}
    for name in ("ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_mean_ms"):
        out[name] = live[name] / sim[name] - 1 if sim[name] > 0 else 0.0
    return out


def print_table(live, sim, difference):
    row = "{:<12}{:>10}{:>14}{:>9}{:>9}{:>9}{:>10}"
    print(row.format("", "hit rate", "TTFT mean s", "p50", "p90", "p99", "TPOT ms"))
    for name, of in (("live", live), ("sim", sim)):
        print(row.format(name, f"{of['token_hit_rate']:.2%}", f"{of['ttft_mean_s']:.4f}",
                         f"{of['ttft_p50_s']:.3f}", f"{of['ttft_p90_s']:.3f}",
                         f"{of['ttft_p99_s']:.3f}", f"{of['tpot_mean_ms']:.2f}"))  # fmt: skip
    print(row.format("difference", f"{difference['hit_rate_points']:+.2f} pt",
                     *(f"{difference[name]:+.1%}"
                       for name in ("ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s",
                                    "tpot_mean_ms"))))  # fmt: skip


def main():
    arguments = parse_arguments()
    flags = [f"--trace={arguments.trace}", f"--requests={arguments.requests}",
             f"--rate={arguments.rate:g}", f"--seed={arguments.seed}", f"--block-size={BLOCK}",
             f"--speed-factor={arguments.speed_factor:g}"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="warmpath-agreement-") as temporary:
        folder = pathlib.Path(arguments.keep_logs or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sim = run_sim(folder, arguments, flags)
        workload, live, processors = run_live(folder, arguments, flags)
    difference = compare(live, sim)
    agree = (live["errors"] == 0 and abs(difference["hit_rate_points"]) <= MOST_POINTS
             and abs(difference["ttft_mean_s"]) <= MOST_TTFT)  # fmt: skip
    code = VOID if processors.mean > MOST_CPU else AGREE if agree else DISAGREE
    verdict = {AGREE: "they agree", DISAGREE: "they do not agree", VOID: "void"}[code]
    print_table(live, sim, difference)
    print(f"{arguments.requests} requests, {arguments.rate:.3g} a second, {WORKERS} workers of speed"
          f" {arguments.speed_factor:g}, blocks of {BLOCK} tokens, {arguments.policy};"
          f" {live['errors']} errors")  # fmt: skip
    print(f"{os.cpu_count()} processors, busy for {processors.mean:.0%} of the live run,"
          f" {processors.busiest:.0%} in the worst {ProcessorTime.WINDOW:g} s; requests left the"
          f" driver {live['driver_late_p99_ms']:.1f} ms late (p99)")  # fmt: skip
    print(f"{verdict}: at most {MOST_POINTS:g} points and {MOST_TTFT:.0%} of mean TTFT apart, with"
          f" processors busy for less than {MOST_CPU:.0%}")  # fmt: skip
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(
            {"workload": workload, "rate_rps": arguments.rate, "workers": WORKERS,
             "speed_factor": arguments.speed_factor, "policy": arguments.policy,
             "processors": {"count": os.cpu_count(), "busy": processors.mean,
                            "busiest_window": processors.busiest},
             "live": live, "sim": sim, "difference": difference,
             "agree": agree, "void": code == VOID}, indent=1) + "\n")  # fmt: skip
    return code


if __name__ == "__main__":
    sys.exit(main())

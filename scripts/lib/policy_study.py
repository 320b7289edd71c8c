"""Reproduces the studies of docs/policy.md with `warmpath-replay sim`.

    python3 scripts/lib/policy_study.py --trace conversation_trace.jsonl [--seeds 4] [STUDY...]

STUDY, all of them by default:
  ablation      the default policy with each of its terms left out, and without the overlay
  sensitivity   lag and loss of cache events, engines believed faster or slower than they are
  order         how far the order of policies by mean time to first token is that of the reference
                run, cell by cell (Kendall's tau)
  best          the default policy against the best of the others, figure by figure

`--results FILE...` takes the cells of `order` and `best` from JSON files that the simulator wrote,
of one run or of several with different seeds, instead of running it. Prints Markdown tables.
"""

import argparse
import collections
import json
import math
import os
import subprocess
import sys
import tempfile

DEFAULT = "marginal_cost"
CELLS = [(8, 0.7), (8, 0.9), (16, 0.7), (16, 0.9)]

# Time to first token, p50 / p90 / p99 in seconds, of another simulator with the same engine model and
# trace that shares no code with this one, in the order of CELLS. It kept no means.
REFERENCE = {
    "round_robin": ["1.09/12.8/32", "9.61/56/89", "1.10/13.2/35", "10.7/67/124"],
    "least_outstanding": ["0.79/4.7/19", "1.26/10.0/28", "0.73/4.2/18", "1.14/8.7/28"],
    "prefix_aware": ["1.36/14.2/36", "2.86/21.7/44", "1.31/13.6/38", "2.85/22.1/48"],
    "smg_cache_aware": ["0.75/5.5/20", "1.20/8.9/25", "0.72/5.3/20", "1.04/8.1/24"],
    "gaie_weighted": ["0.72/3.3/14", "0.98/4.1/16", "0.86/3.7/15", "1.13/4.3/16"],
    "llmd_affinity": ["0.81/3.3/13", "1.16/4.6/15", "0.85/3.4/13", "1.14/4.4/15"],
    "dynamo": ["0.61/2.7/12", "0.89/3.5/12", "0.62/2.7/12", "0.82/3.1/12"],
    "preble_e2": ["0.63/3.9/16", "0.96/6.5/23", "0.59/3.5/15", "0.83/5.4/22"],
    "lmetric": ["0.45/2.4/12", "0.58/3.0/16", "0.44/2.4/12", "0.50/2.6/18"],
    "smetric": ["0.46/2.5/12", "0.58/3.0/16", "0.44/2.5/12", "0.51/2.7/16"],
    "min_ttft": ["0.45/2.4/12", "0.61/3.3/13", "0.43/2.4/12", "0.52/2.8/13"],
    DEFAULT: ["0.44/2.4/12", "0.55/2.9/13", "0.43/2.4/12", "0.48/2.6/13"],
}


def mean_from_quantiles(p50, p90, p99):
    """The mean of a distribution of which three quantiles are known.

    Between them the quantile function is taken to grow exponentially, below the median linearly from
    a quarter of it, above p99 to stay there.
    """
    def between(low, high, share):
        return share * (high - low) / math.log(high / low)
    return 0.5 * 0.625 * p50 + between(p50, p90, 0.4) + between(p90, p99, 0.09) + 0.01 * p99


def kendall_tau(xs, ys):
    """Kendall's tau-b: 1 for the same order, -1 for the opposite one; ties count for neither."""
    def sign(a, b):
        return (a > b) - (a < b)
    both = ties_x = ties_y = pairs = 0
    for i in range(len(xs)):
        for j in range(i):
            x, y = sign(xs[i], xs[j]), sign(ys[i], ys[j])
            pairs += 1
            both += x * y
            ties_x += x == 0
            ties_y += y == 0
    return both / math.sqrt((pairs - ties_x) * (pairs - ties_y))


class Simulator:
    def __init__(self, options):
        self.binary, self.trace, self.seeds = options.binary, options.trace, options.seeds

    def run(self, policies, workers, loads, *flags):
        if not self.trace:
            sys.exit("--trace is missing: the studies are of the conversation trace")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "cells.json")
            subprocess.run([self.binary, "sim", f"--trace={self.trace}", f"--workers={workers}",
                            f"--load={loads}", f"--policies={policies}", f"--seeds={self.seeds}",
                            f"--json={file}", "--progress=false", *flags],
                           check=True, stdout=subprocess.DEVNULL)
            with open(file, encoding="utf-8") as stream:
                return json.load(stream)["cells"]


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def figures(cell):
    return (f"{cell['ttft_mean_s']:.2f} / {cell['ttft_p50_s']:.2f} / {cell['ttft_p90_s']:.2f} / "
            f"{cell['ttft_p99_s']:.1f}; {100 * cell['token_hit_rate']:.1f}; "
            f"{cell['tpot_mean_ms']:.0f}; {100 * cell['goodput']:.0f}")


def loads_of(cells):
    return sorted({(cell["workers"], cell["load"]) for cell in cells})


def cell_name(key):
    return f"{key[0]} workers, load {key[1]:g}"


def ablation(simulator):
    policies = f"{DEFAULT},ablations,min_ttft"
    cells = simulator.run(policies, "8,16", "0.7,0.9")
    bare = simulator.run(DEFAULT, "8,16", "0.7,0.9", "--overlay=false")
    keys = loads_of(cells)
    rows = collections.OrderedDict()
    for cell in cells:
        rows.setdefault(f"`{cell['policy']}`", []).append(figures(cell))
    rows["without the overlay"] = [figures(cell) for cell in bare]
    print("Ablation: mean / p50 / p90 / p99 TTFT in s; hits in %; TPOT in ms; goodput in %\n")
    table(["", *map(cell_name, keys)], [[name, *row] for name, row in rows.items()])


def sensitivity(simulator):
    runs = [("as it is: lag 50 ms", []),
            ("lag 0", ["--event_lag_ms=0"]),
            ("lag 500 ms", ["--event_lag_ms=500"]),
            ("lag 5 s", ["--event_lag_ms=5000"]),
            ("1 % of events lost", ["--event_loss=0.01"]),
            ("10 % of events lost", ["--event_loss=0.1"]),
            ("believed twice as fast", ["--believed_speed=2"]),
            ("believed half as fast", ["--believed_speed=0.5"]),
            ("no speed registered", ["--believed_speed=0"])]
    known, rows = None, []
    for name, flags in runs:
        cells = simulator.run(DEFAULT, "8,16", "0.7,0.9", *flags)
        known = known or cells
        rows.append([name] + [
            f"{figures(cell)} ({100 * (cell['ttft_mean_s'] / base['ttft_mean_s'] - 1):+.1f} %)"
            for cell, base in zip(cells, known)])
    print("Sensitivity: as above; in brackets the mean TTFT against the first line\n")
    table(["", *map(cell_name, loads_of(known))], rows)


def merged(files):
    """Cells of several runs with different seeds as those of one; standard errors included."""
    sums = collections.OrderedDict()
    for file in files:
        with open(file, encoding="utf-8") as stream:
            for cell in json.load(stream)["cells"]:
                sums.setdefault((cell["workers"], cell["load"], cell["policy"]), []).append(cell)

    def pool(parts):  # of (n, mean, standard error)
        n = sum(part[0] for part in parts)
        mean = sum(part[0] * part[1] for part in parts) / n
        squares = sum(k * (k - 1) * error ** 2 + k * (m - mean) ** 2 for k, m, error in parts)
        return mean, math.sqrt(squares / (n * (n - 1))) if n > 1 else 0.0

    cells = []
    for (workers, load, policy), parts in sums.items():
        cell = {"workers": workers, "load": load, "policy": policy, "standard_error": {},
                "minus_marginal_cost": {}, "seeds": sum(part["seeds"] for part in parts)}
        for field in parts[0]["standard_error"]:
            cell[field], cell["standard_error"][field] = pool(
                [(p["seeds"], p[field], p["standard_error"][field]) for p in parts])
            if "minus_marginal_cost" in parts[0]:
                cell["minus_marginal_cost"][field] = pool(
                    [(p["seeds"], *p["minus_marginal_cost"][field]) for p in parts])
        cells.append(cell)
    return cells


def results(cells):
    rows = collections.OrderedDict()
    for cell in cells:
        rows.setdefault(f"`{cell['policy']}`", []).append(
            f"{cell['ttft_mean_s']:.2f} / {cell['ttft_p50_s']:.2f} / {cell['ttft_p90_s']:.1f} / "
            f"{cell['ttft_p99_s']:.0f}; {100 * cell['token_hit_rate']:.0f}; "
            f"{100 * cell['goodput']:.0f}")
    print(f"Results, {cells[0]['seeds']} seeds: mean / p50 / p90 / p99 TTFT in s; hits in %; "
          "goodput in %\n")
    table(["policy", *map(cell_name, loads_of(cells))], [[name, *row] for name, row in rows.items()])


def best(cells):
    rows = []
    for key in loads_of(cells):
        here = {cell["policy"]: cell for cell in cells if (cell["workers"], cell["load"]) == key}
        ours = here.pop(DEFAULT)
        row = [cell_name(key)]
        for field in ["ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s"]:
            other = min(here.values(), key=lambda cell: cell[field])
            ratio = ours[field] / other[field]
            error = other["minus_marginal_cost"][field][1] / other[field]
            row.append(f"{ratio:.3f} ± {error:.3f} (`{other['policy']}`)")
        other = max(here.values(), key=lambda cell: cell["goodput"])
        row.append(f"{-100 * other['minus_marginal_cost']['goodput'][0]:+.1f} ± "
                   f"{100 * other['minus_marginal_cost']['goodput'][1]:.1f} (`{other['policy']}`)")
        rows.append(row)
    print(f"`{DEFAULT}` / the best of the others ± standard error of paired seeds; goodput: points\n")
    table(["", "mean", "p50", "p90", "p99", "goodput"], rows)


def order(cells):
    rows = []
    for key in loads_of(cells):
        if key not in CELLS:
            continue
        ours, theirs, gaps = [], [], []
        for cell in cells:
            if (cell["workers"], cell["load"]) == key and cell["policy"] in REFERENCE:
                quantiles = REFERENCE[cell["policy"]][CELLS.index(key)]
                theirs.append(mean_from_quantiles(*map(float, quantiles.split("/"))))
                ours.append(cell["ttft_mean_s"])
                gaps.append(abs(mean_from_quantiles(*(cell[f"ttft_{p}_s"]
                                                      for p in ("p50", "p90", "p99"))) /
                                cell["ttft_mean_s"] - 1))
        if len(ours) < 2:
            continue
        rows.append([cell_name(key), str(len(ours)), f"{kendall_tau(ours, theirs):.2f}",
                     f"{100 * max(gaps):.0f} %"])
    print("Order of mean TTFT against the reference\n")
    table(["", "policies", "Kendall's tau", "largest error of a mean from quantiles"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY")
    parser.add_argument("--binary", default="build/release/bin/warmpath-replay")
    parser.add_argument("--trace")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--results", nargs="+", metavar="FILE")
    options = parser.parse_args()
    names = ["ablation", "sensitivity", "order", "best"]
    studies = options.studies or names
    for name in studies:
        if name not in names:
            parser.error(f"STUDY {name}: use one of {', '.join(names)}")
    simulator = Simulator(options)
    if "ablation" in studies:
        ablation(simulator)
    if "sensitivity" in studies:
        sensitivity(simulator)
    if "order" in studies or "best" in studies:
        if options.results:
            cells = merged(options.results)
        else:
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "all.json")
                with open(file, "w", encoding="utf-8") as stream:
                    json.dump({"cells": simulator.run("all", "8,16", "0.7,0.9")}, stream)
                cells = merged([file])
        results(cells)
        if "order" in studies:
            order(cells)
        if "best" in studies:
            best(cells)


if __name__ == "__main__":
    main()

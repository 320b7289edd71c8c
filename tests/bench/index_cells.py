#!/usr/bin/env python3
"""Runs index_bench in all its cells and prints the tables of docs/performance.md.

  tests/bench/index_cells.py --trace FILE [--bench build/release/bin/index_bench] [--rounds 5]

FILE is a request trace in Mooncake's format. The whole takes about three minutes and 3 GB. Each
cell is a process of its own; `--prefix "nice -n -10"` puts a command before each.
"""

import argparse
import json
import subprocess

TRACE_CELLS = [
    # name, options
    ("128-token blocks, 128 workers", "--workers 128 --length-factor 4 --duplication 4"),
    ("the same, one removal an event",
     "--workers 128 --length-factor 4 --duplication 4 --removals single"),
    ("the same, 2 writers, 2 readers",
     "--workers 128 --length-factor 4 --duplication 4 --writers 2 --readers 2"),
    ("the same, 4 writers, 4 readers",
     "--workers 128 --length-factor 4 --duplication 4 --writers 4 --readers 4"),
    ("the same, 1,000 workers", "--workers 1000 --length-factor 4 --duplication 4"),
    ("16-token blocks, 64 workers of 100,000",
     "--workers 64 --length-factor 32 --duplication 1 --blocks-per-worker 100000"),
]
OTHER_CELLS = ["hash", "leave", "memory", "bound", "scale"]


def run(arguments, options):
    command = options.prefix.split() + [options.bench, "--json"] + arguments
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def millions(value):
    return f"{value / 1e6:.2f} M" if value < 1e7 else f"{value / 1e6:.1f} M"


def trace_row(name, cell):
    return [
        name,
        millions(cell["block_ops_per_s"]),
        millions(cell["writer_block_events_per_s"]),
        millions(cell["lookups_per_s"]),
        f"{cell['lookup_p50_us']:.2f} / {cell['lookup_p99_us']:.1f} us",
        f"{cell['bytes_per_pair']:.1f} / {cell['bytes_per_pair_peak']:.1f}",
        f"{100 * (cell['resident_bytes'] / cell['account_bytes'] - 1):+.1f} %",
        f"{cell['calib_random_read_ns']:.0f} ns",
    ]


def print_table(rows):
    for i, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if i == 0:
            print("|" + "---|" * len(row))
    print()


def flatten(values, group=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{group}{name}: ")
        else:
            yield group + name.replace("_", " "), value


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--bench", default="build/release/bin/index_bench")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--only", help="cells with this in their name")
    options = parser.parse_args()

    rows = [["cell", "block ops/s", "writer alone, events/s", "look-ups/s",
             "look-up p50 / p99 beside writers", "bytes/pair, end / peak",
             "resident against account", "random read"]]
    for number, (name, arguments) in enumerate(TRACE_CELLS):
        if options.only and options.only not in name:
            continue
        cell_arguments = ["--trace", options.trace, "--rounds", options.rounds, *arguments.split()]
        if number > 0:
            cell_arguments.append("--no-comparators")
        cell = run(cell_arguments, options)
        rows.append(trace_row(name, cell))
        for comparator, figures in cell.get("comparators", {}).items():
            rows.append([f"{comparator} on it: {figures['times_less']:.1f} times less",
                         millions(figures["block_ops_per_s"])] + [""] * 6)
    print_table(rows)

    for name in OTHER_CELLS:
        if options.only and options.only not in name:
            continue
        figures = run(["--cell", name], options)
        print_table([[name, ""]] + [[label, f"{value:,.3f}".rstrip("0").rstrip(".")]
                                    for label, value in flatten(figures)])


if __name__ == "__main__":
    main()

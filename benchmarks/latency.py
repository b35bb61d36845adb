"""How long files take to run in ONNX Runtime by either clock, raced as `sardonyx bench` races them.

    python benchmarks/latency.py NAME=FILE NAME=FILE ... [--seconds 20] [--threads 1] [--clock cpu] [--size seq=128]
        [--json]

The first file is what the others are compared with; it runs as two sessions, which tell what the machine cannot tell
apart. With one thread, `--clock cpu` leaves out the time in which the system let something else run; on a machine that
others use it tells far more than the wall clock does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec

from sardonyx.inputs.generator import at_size, dynamic_dims
from sardonyx.ir import io
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verbs.bench import interleaving
from sardonyx.verbs.bench.interleaving import Race

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def raced(files: dict[str, str], sizes: dict[str, int], *, seconds: float, threads: int, clock: str) -> Race:
    """All files at once, the first one twice."""
    model = io.load(next(iter(files.values())))
    known = dynamic_dims(model)
    drawn = at_size(model, {dim: size for dim, size in sizes.items() if dim in known})

    def contender(path: str) -> interleaving.Run:
        return interleaving.slot(TimedModel(path, Settings(threads)).ready(drawn), now=CLOCKS[clock])

    runs = {name: contender(path) for name, path in files.items()}
    return interleaving.race(runs, twin=contender(next(iter(files.values()))), seconds=seconds)


def shown(race: Race) -> str:
    """One line for each file."""
    lines: list[str] = []
    for name, seconds in race.seconds.items():
        found = race.comparison(name)
        lines.append(
            f"{name:<24} {1000 * statistics.median(seconds):9.2f} ms  "
            f"{found.ratio:6.3f} × [{found.low:.3f}, {found.high:.3f}]  {found.finding}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Race the files named and print how they did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--seconds", type=float, default=20.0, help="after which no new round begins")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--size", nargs="*", default=["batch=1", "seq=128"], metavar="DIM=N", help="of open dims")
    parser.add_argument("--json", action="store_true", help="the race itself, round by round")
    asked = parser.parse_args(arguments)
    if asked.clock == "cpu" and asked.threads != 1:
        parser.error("--clock cpu counts the one thread that asks; it says nothing about several")
    files = dict(each.split("=", 1) for each in asked.files)
    sizes = {name: int(size) for name, size in (each.split("=", 1) for each in asked.size)}
    race = raced(files, sizes, seconds=asked.seconds, threads=asked.threads, clock=asked.clock)
    print(json.dumps(msgspec.to_builtins(race)) if asked.json else shown(race))


if __name__ == "__main__":
    main(sys.argv[1:])

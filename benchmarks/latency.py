"""How long files take to run in ONNX Runtime with all its own optimizations on, as ratios that one can trust.

    python benchmarks/latency.py NAME=FILE NAME=FILE ... [--rounds 25] [--seconds 20] [--threads 1] [--clock wall]
        [--size seq=128] [--json]

All files are loaded at once and take turns: in every round each runs for the same short while, in another order each
time, on the same inputs, and the fastest run of its while counts: what disturbs a run only ever adds to it. The first
file is what the others are compared with. With one thread, `--clock cpu` leaves out the time in which the system let
something else run; on a machine that others use it tells far more than the wall clock does.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import intervals

WARM = 2  # runs before anything counts
SLOT = 0.05  # seconds that a file should run for within a round: what is shorter is repeated
FEWEST = 7  # rounds, however long they take
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def race(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float, clock: str = "wall", seed: int = 0
) -> dict[str, list[float]]:
    """Seconds a run of each contender, round by round."""
    now = CLOCKS[clock]
    repeats = {name: _repeats(run) for name, run in contenders.items()}
    order, shuffle = list(contenders), random.Random(seed).shuffle
    times: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if number >= FEWEST and time.perf_counter() - began > seconds:
                break
            shuffle(order)
            for name in order:
                times[name].append(_fastest(contenders[name], repeats[name], now))
    finally:
        gc.enable()
    return times


def _repeats(run: Callable[[], object]) -> int:
    for _ in range(WARM):
        run()
    return max(1, round(SLOT / _fastest(run, 1, time.perf_counter)))


def _fastest(run: Callable[[], object], repeats: int, now: Callable[[], float]) -> float:
    took: list[float] = []
    for _ in range(repeats):
        began = now()
        run()
        took.append(now() - began)
    return min(took)


def loaded(path: str, feeds: Mapping[str, Any], threads: int) -> Callable[[], object]:
    """A file in the runtime, ready to run on those of the feeds that it takes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    taken = {each.name: feeds[each.name] for each in session.get_inputs() if each.name in feeds}
    return lambda: session.run(None, taken)


def summary(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Median milliseconds and the ratio to the first, by name."""
    first = next(iter(times.values()))
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in times.items():
        ratio = intervals.paired(runs, first)
        rows[name] = {"ms": 1000 * statistics.median(runs), "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    return rows


def main(arguments: Sequence[str]) -> None:
    """Race the files named and print how they did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=20.0, help="after which no new round begins")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--size", nargs="*", default=["batch=1", "seq=128"], metavar="DIM=N", help="of open dims")
    parser.add_argument("--json", action="store_true", help="the times themselves, round by round")
    asked = parser.parse_args(arguments)
    if asked.clock == "cpu" and asked.threads != 1:
        parser.error("--clock cpu counts the one thread that asks; it says nothing about several")

    import feeds  # after the arguments: help answers at once
    from sardonyx.graph import io

    files = dict(each.split("=", 1) for each in asked.files)
    sizes = {name: int(size) for name, size in (each.split("=", 1) for each in asked.size)}
    drawn = feeds.at_size(io.load(next(iter(files.values()))), sizes)
    contenders = {name: loaded(path, drawn, asked.threads) for name, path in files.items()}
    times = race(contenders, rounds=asked.rounds, seconds=asked.seconds, clock=asked.clock)
    if asked.json:
        print(json.dumps(times))
        return
    for name, row in summary(times).items():
        print(f"{name:<24} {row['ms']:9.2f} ms  {row['ratio']:5.2f} × [{row['low']:.2f}, {row['high']:.2f}]")


if __name__ == "__main__":
    main(sys.argv[1:])

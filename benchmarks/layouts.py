"""How long pictures of graphs take to lay out, and how much of a page the graphs of a run are.

    python benchmarks/layouts.py [RUN ...]

Graphs of 60 and 2,000 boxes of several forms are laid out, each once, timed by the clock of the process: under a second
for 2,000. A RUN is a run.json: its graphs stay under 1.2 MB. About 10 seconds. Fails where one is too slow or too
large.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sardonyx.records.run import Run
from sardonyx.reporting.page import graph
from sardonyx.reporting.plots.layered import layout
from sardonyx.reporting.run_bundle import RunBundle

SLOWEST, LARGEST = 1.0, 1_200_000  # seconds for 2,000 boxes; bytes of both graphs of a run
Edges = list[tuple[int, int]]


def chain(size: int, _rng: random.Random) -> Edges:
    """One after another."""
    return [(at, at + 1) for at in range(size - 1)]


def residual(size: int, _rng: random.Random) -> Edges:
    """A chain with a skip over every sixth."""
    return [*((at, at + 1) for at in range(size - 1)), *((at, at + 6) for at in range(0, size - 6, 6))]


def near(size: int, rng: random.Random) -> Edges:
    """Each reads two that came shortly before it."""
    return [(max(0, at - rng.choice((1, 1, 2, 3, 8, 30))), at) for at in range(1, size) for _ in range(2)]


def fan(size: int, _rng: random.Random) -> Edges:
    """A chain that all read the first of."""
    return [*((at, at + 1) for at in range(size - 1)), *((0, at) for at in range(2, size))]


def anywhere(size: int, rng: random.Random) -> Edges:
    """Edges that lead anywhere, cycles too."""
    return [(rng.randrange(size), rng.randrange(size)) for _ in range(2 * size)]


FORMS: tuple[Callable[[int, random.Random], Edges], ...] = (chain, residual, near, fan, anywhere)


def main(runs: list[str]) -> int:
    """Print a line for each layout and each run; 1 where one is out of bounds."""
    failed = False
    for form in FORMS:
        for size in (60, 2000):
            edges = [edge for edge in form(size, random.Random(1)) if edge[0] != edge[1]]
            start = time.process_time()
            found = layout([(70.0, 26.0)] * size, edges)
            spent = time.process_time() - start
            failed |= spent > SLOWEST
            area = f"{found.width:,.0f} × {found.height:,.0f}"
            print(f"{form.__name__:<10} {size:>6,} boxes {len(edges):>6,} edges  {spent:6.3f} s  {area}")
    for path in runs:
        start = time.process_time()
        made = graph.section(RunBundle(path, Run.from_json(Path(path).read_bytes())))
        spent = time.process_time() - start
        size = len(msgspec.json.encode(made.data))
        failed |= size > LARGEST
        print(f"{path}: {size:,} bytes of graphs, {spent:.2f} s")
    print("FAILED" if failed else "all within bounds")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

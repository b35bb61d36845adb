"""CPU time of `optimize` without verification in one process, for each node of the source.

    python benchmarks/in_process.py MODEL.onnx ...

Nodes are counted without Constants. The first model runs once more before, so that imports do not count.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import sardonyx
from claims import Claim

LIMIT = 0.5  # milliseconds for each node, over all models
REPEATS = 3


def main(files: list[str]) -> int:
    """Print a row for each model; 1 if the limit is missed."""
    sardonyx.optimize(files[0], verify="off")
    nodes, spent = 0, 0.0
    for file in files:
        seconds: list[float] = []
        for _ in range(REPEATS):
            began = time.process_time()
            run = sardonyx.optimize(file, verify="off")
            seconds.append(time.process_time() - began)
        nodes, spent = nodes + run.before.nodes, spent + min(seconds)
        each = 1000 * min(seconds) / max(1, run.before.nodes)
        print(f"  {Path(file).stem:<32} {run.before.nodes:6,} nodes {min(seconds):7.3f} s {each:6.3f} ms", flush=True)
    claim = Claim("CPU time of one node", 1000 * spent / max(1, nodes), LIMIT, "ms")
    print(claim.line())
    return 0 if claim.met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Default verification of models with many dynamic dims, with wide static ones, and with nodes in no order.

    python benchmarks/trial_limits.py [--nodes 1884] [--drawn 500] [--every 1] [--jobs 2] [--only open,wide,unsorted]

The models are the node cases of onnx, and graphs drawn as by benchmarks/fuzz.py; each is changed in three ways. Each
change is optimized with default settings and one thread in a process of its own. A model may be refused with a reason;
it may not end in an exception that is none of Sardonyx's, nor take more than 60 s of the CPU or 2 GB, all its processes
together. (Time on the clock depends on what else the machine does; with one thread it is the same on an idle one.)
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnx

from catalogue_case import failure
from claims import Claim
from fuzzing import families
from fuzzing.draft import Rejected

SECONDS, MEGABYTES = 60.0, 2048
WIDE = (1024, 4096)
_TICK = 0.02  # seconds between two looks at the memory
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------------- models


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give every dimension of every input a name of its own."""
    return _with_dims(model, lambda dims: [None] * len(dims))


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make the last two dimensions of every input wide, and all others dynamic."""
    return _with_dims(model, lambda dims: [None] * (len(dims) - 2) + list(WIDE[-len(dims) :] if dims else ()))


def unsorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the nodes in random order."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(model.graph.node)
    random.Random(len(nodes)).shuffle(nodes)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


def _with_dims(model: onnx.ModelProto, choose: Callable[[Sequence[object]], Sequence[int | None]]) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    stored = {tensor.name for tensor in changed.graph.initializer}
    for place, value in enumerate(changed.graph.input):
        if value.name not in stored and value.type.HasField("tensor_type"):
            dims = value.type.tensor_type.shape.dim
            for axis, size in enumerate(choose(dims)):
                dims[axis].Clear()
                if size is None:
                    dims[axis].dim_param = f"d{place}_{axis}"
                else:
                    dims[axis].dim_value = size
    for value in changed.graph.output:  # the declared sizes hold no longer
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del changed.graph.value_info[:]
    return changed


CHANGES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "open": opened,
    "wide": widened,
    "unsorted": unsorted,
}


@functools.cache
def node_models() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """The models of the node cases of onnx."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple((case.name, case.model) for case in collect_testcases(None) if case.model is not None)


def drawn_models(count: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield drawn graphs, the same ones in every run."""
    for seed in range(count):
        try:
            drawn = families.draw(seed)
        except Rejected:
            continue
        yield f"{drawn.family}.{seed}", drawn.model


# ---------------------------------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Outcome:
    """What became of one model."""

    name: str
    kind: str  # "verified", the class of an error, or why there is none
    text: str
    seconds: float  # of the CPU
    megabytes: float

    @property
    def fault(self) -> str:
        """What is wrong with it, or nothing."""
        if self.kind == "unexpected":
            return self.text
        if self.seconds > SECONDS:
            return f"{self.seconds:.0f} s"
        return f"{self.megabytes:.0f} MB" if self.megabytes > MEGABYTES else ""


def run(name: str, model: onnx.ModelProto) -> Outcome:
    """Optimize a model in a process of its own, and watch its memory and that of its children."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_optimize, args=(model, there))
    process.start()
    there.close()
    assert process.pid is not None
    seconds, most = 0.0, 0.0
    while not here.poll(_TICK) and seconds < 2 * SECONDS and most < 2 * MEGABYTES:
        spent, megabytes = tree_usage(process.pid)
        seconds, most = max(seconds, spent), max(most, megabytes)
    try:
        kind, text = here.recv() if here.poll() else ("stopped", "")
    except EOFError:
        process.join()
        kind, text = "unexpected", f"the process ended with exit code {process.exitcode}"
    seconds = max(seconds, tree_usage(process.pid)[0])
    process.kill()  # its worker ends with it
    process.join()
    return Outcome(name, kind, text, seconds, most)


def _optimize(model: onnx.ModelProto, pipe: Any) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import sardonyx

    try:
        verdict = sardonyx.optimize(model, threads=1).verdict
        pipe.send(("verified", "; ".join(verdict.not_covered) if verdict is not None else ""))
    except sardonyx.SardonyxError as error:
        pipe.send((type(error).__name__, error.message))
    except BaseException as error:
        row = failure(error)
        pipe.send(("unexpected", f"{row['error']} at {row.get('at', '')}"))
    signal.pause()  # until the memory of this process has been read for the last time


def tree_usage(root: int) -> tuple[float, float]:
    """Return the CPU seconds and the resident megabytes of a process and all below it; shared pages count for each."""
    ticks, pages, waiting = 0, 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except (OSError, IndexError):  # it has ended
            continue
    return ticks / _TICKS, pages * _PAGE / (1 << 20)


# ---------------------------------------------------------------------------------------------- the campaign


def campaign(models: Sequence[tuple[str, onnx.ModelProto]], changes: Sequence[str], jobs: int) -> list[Outcome]:
    """Run every model in every change."""
    import sardonyx.verbs.optimize.pipeline
    import sardonyx.verification  # noqa: F401  # once for all copies of this process

    work = [(f"{change}/{name}", model, change) for name, model in models for change in changes]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda each: run(each[0], CHANGES[each[2]](each[1])), work):
            outcomes.append(outcome)
            if outcome.fault:
                print(f"  {outcome.name}: {outcome.kind}: {outcome.fault}", flush=True)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield one row for each change."""
    yield "| change | models | verified | refused with a reason | unexpected | over 60 s | over 2 GB | longest | most |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for change in dict.fromkeys(each.name.split("/")[0] for each in outcomes):
        rows = [each for each in outcomes if each.name.startswith(f"{change}/")]
        kinds = collections.Counter(each.kind for each in rows)
        refused = len(rows) - kinds["verified"] - kinds["unexpected"] - kinds["stopped"]
        slow, wide = (
            sum(bad) for bad in ((r.seconds > SECONDS for r in rows), (r.megabytes > MEGABYTES for r in rows))
        )
        longest, most = max(each.seconds for each in rows), max(each.megabytes for each in rows)
        yield (
            f"| {change} | {len(rows)} | {kinds['verified']} | {refused} | {kinds['unexpected']} | {slow} | {wide} "
            f"| {longest:.0f} s | {most:.0f} MB |"
        )


def main() -> int:
    """Run the campaign; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1 << 20, help="node cases")
    parser.add_argument("--drawn", type=int, default=500, help="drawn graphs")
    parser.add_argument("--every", type=int, default=1, help="take one model in so many")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(CHANGES), help="changes, separated by commas")
    asked = parser.parse_args()
    models = [*node_models()[: asked.nodes], *drawn_models(asked.drawn)][:: asked.every]
    outcomes = campaign(models, asked.only.split(","), asked.jobs)
    print("\n".join(table(outcomes)))
    reasons = collections.Counter(each.text[:70] for each in outcomes if each.kind not in ("verified", "unexpected"))
    for reason, count in reasons.most_common(12):
        print(f"  {count:5} {reason}")
    claim = Claim(
        "models that end in an unexpected failure, or take too long or too much",
        len([e for e in outcomes if e.fault]),
        0,
        "",
    )
    print(claim.line())
    return 0 if claim.met else 1


if __name__ == "__main__":
    sys.exit(main())

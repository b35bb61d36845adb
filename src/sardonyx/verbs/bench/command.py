"""Time ONNX files against each other, with confidence intervals.

Example:
  sardonyx bench model.onnx optimized.onnx
  sardonyx bench model.onnx optimized.onnx --sweep seq=16,128,512 --sweep batch=1,8 --svg times.svg
  sardonyx bench before.onnx after.onnx --fail-if 'latency_ratio>1.05' --format markdown
  sardonyx bench model.onnx optimized.onnx --runtime web-wasm

The files run in turn, in random order, round after round, until the interval of each ratio to the first file is narrow
or the time is spent. A difference within that of two copies of the first file is no difference. "12 % faster" means
12 % less time. docs/bench.md explains the method.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from sardonyx.cli import options
from sardonyx.cli.console import announce
from sardonyx.cli.options import MORE, Option, argument, choice, file, listed, svg, table_format
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import UsageError

_SWEEP = re.compile(r"(?P<dim>[^\s=]+)=(?P<sizes>[1-9]\d{0,17}(?:,[1-9]\d{0,17})*)", re.ASCII)


# How long measurements take at most, estimated from the sizes of the files before they start. A model starts in about a
# second and 5 ms for each megabyte of weights: a process, the file, the first run.

_START_SECONDS, _BYTES_A_SECOND = 1.0, 2e8
_DEFAULT_STARTS = 3  # fresh processes for each file, the default of `bench`
_PROFILE_SECONDS, _ANALYZE_SECONDS, _PAGE_SECONDS = 5.0, 2.0, 2.0  # seconds, apart from loading


def bench_seconds(files: Sequence[Path], limit: float, starts: int, sizes: int = 1) -> float:
    """Return about how long `bench` takes, with these seconds for all rounds together and fresh starts of each file.

    Each size of a sweep after the first gets at most one start.
    """
    from sardonyx.verbs.bench.bench import starts_limit  # imported here because it loads what measures

    once = _once(files)
    starts = min(starts, max(1, int(starts_limit(limit) / once)))
    return limit + (1 + starts + (sizes - 1) * min(1, starts)) * once


def run_seconds(files: Sequence[Path], limit: float) -> float:
    """Return about how long the measurements of `optimize --run` take, whose timing is limited to these seconds."""
    return (
        bench_seconds(files, limit, _DEFAULT_STARTS)
        + _PROFILE_SECONDS
        + 2 * _once(files)
        + _ANALYZE_SECONDS
        + _PAGE_SECONDS
    )


def _once(files: Sequence[Path]) -> float:
    """Return about how long it takes to start each file once, with the data files beside it that are named after it."""
    parts = [part for file in files for part in (file, *file.parent.glob(f"{file.name}.*data")) if part.is_file()]
    return _START_SECONDS * len(files) + sum(part.stat().st_size for part in parts) / _BYTES_A_SECOND


def _run(given: Given) -> int:
    given.check()
    sweep: dict[str, tuple[int, ...]] = given.sweep or {}
    points = math.prod(map(len, sweep.values()))
    expected = bench_seconds(given.models, given.seconds, given.starts, points)
    what = f"timing {len(given.models)} files" if len(given.models) > 1 else "timing"
    announce(what, expected, shown=not given.quiet)
    return given.finish(given.call(runtimes=given.runtime or ("ort",)))


def _parse_sweep(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each dimension to sweep; a dimension that is named twice gets the sizes of both."""
    sweep: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = _SWEEP.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"'{text}' is not a sweep", hint="write DIM=N,N,…, for example --sweep seq=16,128,512")
        sweep[match["dim"]] = sweep.get(match["dim"], ()) + tuple(map(int, match["sizes"].split(",")))
    return sweep


VERB = Verb(
    of=("bench",),
    options=(
        argument("models", "MODEL...", "ONNX files, the reference first.", list[Path], checked=True),
        options.seconds("60"),
        options.SIZES,
        listed("sweep", "DIM=N,N", "Sizes to try for a dynamic dimension. Repeatable; dimensions are combined.",
            read=_parse_sweep),
        file("inputs", "Run on these arrays, one for each input.", metavar="FILE.npz", none="random inputs",
            group=MORE),
        options.TIMED_THREADS, options.CUSTOM_OPS,
        replace(options.RUNTIME, help="Runtime to time models in: ort, openvino, web-wasm. Repeatable: each in each."),
        options.PROVIDER, options.LEVEL,
        choice("clock", Literal["wall", "cpu"], "Measure elapsed time, or only the CPU time of the model.",
            default="wall", group=MORE),
        Option("isolate", help="Run each file in its own process.", group=MORE),
        Option("starts", "N", "Fresh processes for each file, for load time and memory; 0: none.", group=MORE,
            default=3, least=0, most=100),
        table_format("every round"),
        svg("the times as a box plot"),
        options.RECORD, options.FORCE, options.SEED, *options.PRINTING,
    ),
    record="bench",
    document=later("sardonyx.reporting.bench:bench_document"),
    sentence=later("sardonyx.reporting.bench:bench_sentence"),
    csv=later("sardonyx.reporting.bench:bench_csv"),
    svg=later("sardonyx.reporting.plots.charts:boxplot_svg"),
    translated=True,
    run=_run,
)  # fmt: skip

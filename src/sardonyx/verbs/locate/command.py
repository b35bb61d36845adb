"""Find the first module whose outputs differ in two models.

Example:
  sardonyx locate model.onnx small.onnx
  sardonyx locate model.onnx int8.onnx --inputs batch.npz
  sardonyx locate model.py:build model.onnx
  sardonyx locate model.onnx model.onnx --runtime ort --runtime openvino

Compares the values at the borders of modules, found by their tags, and names the first module whose outputs differ
although its inputs agree. Then the first model's values are put into the second one at several borders: what is left of
the error shows the share of each module. The most responsible modules are put in alone, too. An error that many modules
share is reported as such.

Exit: 0 no difference, 1 failed, 2 usage, 3 the models differ, 4 gate not met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sardonyx.cli import options
from sardonyx.cli.options import Option, argument, check_readable, file
from sardonyx.cli.verb import Given, Verb, later


def _run(given: Given) -> int:
    given.check()
    model, example = _first(given.a, given.task, given.dtype, given.seed)
    inputs = {"inputs": given.inputs} if given.inputs is not None else example
    runtimes = given.runtime or ("ort",)
    location = given.call(model, given.b, runtimes=runtimes, **inputs)
    return given.finish(location, differs="" if location.same else "the two models do not compute the same")


def _first(a: str, task: str | None, dtype: options.DTYPES | None, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the reference, and the example inputs of a PyTorch model that comes with some."""
    if a.endswith(".onnx") or Path(a).is_file():
        check_readable(Path(a))
        options.start_verifier()
        return Path(a), {}
    from sardonyx.frontend.installed import require_torch
    from sardonyx.frontend.sources import parse_source

    parse_source(a, task=task)
    require_torch()
    from sardonyx.frontend.models import resolve

    resolved = resolve(a, task=task, seed=seed, dtype=dtype)
    return resolved.module, {"inputs": resolved.args, "kwargs": resolved.kwargs}


VERB = Verb(
    of=("locate",),
    options=(
        argument("a", "A", "The reference: an ONNX file or a PyTorch model (see `export`)."),
        argument("b", "B", "The ONNX file to check.", Path, checked=True),
        file("inputs", "Compare on these arrays, one for each input.", metavar="FILE.npz", none="random inputs"),
        Option("most_runs", "N", "Largest number of runs that measure the shares of modules.", least=0),
        replace(options.RUNTIME, help="Runtime of A, then that of B if it is another one."),
        options.TASK, options.DTYPE, options.SEED, options.THREADS, options.RECORD, options.FORCE, *options.PRINTING,
    ),
    record="location",
    document=later("sardonyx.reporting.verdict:location_document"),
    sentence=later("sardonyx.reporting.verdict:location_sentence"),
    run=_run,
)  # fmt: skip

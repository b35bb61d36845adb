"""Trained models in lower precision: loss on unseen data, bytes and time, beside ONNX Runtime's quantizers and NNCF.

    make precision
    python benchmarks/precision.py --cache FOLDER [--only MODEL ...] [--form FORM ...] [--no-timing | --timing-only]
    python benchmarks/precision.py --cache FOLDER --tags | --memory
    python benchmarks/precision.py --cache FOLDER --table

Trains or unpacks each model, quantizes it with every form, and measures the loss on samples that no form has seen, with
ONNX Runtime at its default optimizations. Times are those of interleaved runs of one thread against the float32 file,
with the intervals of `sardonyx bench`. Results are stored for each model and form, and a second run makes only what is
missing (`--again` makes it anew); `--table` writes benchmarks/precision.md from them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.helper

import precision_checks
import precision_forms
import precision_models
import precision_table
from precision_forms import FORMS, LANGUAGE, OURS
from precision_models import HERE, Case, Feeds
from precision_packages import PACKAGED
from precision_table import FLOAT32, Result, Row, Rows, Timing
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verbs.bench import interleaving

MODELS = HERE | PACKAGED
BITS: dict[int, int] = {onnx.TensorProto.INT4: 4, onnx.TensorProto.UINT4: 4}
TOGETHER = 5  # forms in one race, beside the float32 file and its twin


class Store:
    """The folder with models, forms and results."""

    def __init__(self, folder: Path, packages: Path) -> None:
        """Use a folder, which is created when something is written."""
        self.folder, self._packages = folder.resolve(), packages.resolve()

    def case(self, name: str) -> Case:
        """Return a model; it is trained or unpacked if it is not there."""
        folder = self.folder / "models" / name
        if not (folder / "case.json").exists():
            return MODELS[name](name, folder, self._packages)
        return precision_models.load(folder)

    def file(self, case: Case, form: str) -> Path:
        """Return where a form of a model is."""
        return case.model if form == FLOAT32 else self.folder / "forms" / case.name / f"{_slug(form)}.onnx"

    def result(self, model: str, form: str) -> Result | None:
        """Return a stored result."""
        path = self._result(model, form)
        return msgspec.json.decode(path.read_bytes(), type=Result) if path.exists() else None

    def save(self, result: Result) -> None:
        """Store a result."""
        _write(self._result(result.model, result.form), result)

    def timing(self, model: str, form: str) -> dict[str, Timing]:
        """Return the stored times by size."""
        path = self._result(model, form, "timing")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Timing]) if path.exists() else {}

    def save_timing(self, model: str, form: str, timing: dict[str, Timing]) -> None:
        """Store times."""
        _write(self._result(model, form, "timing"), timing)

    def write(self, name: str, what: object) -> None:
        """Store anything else as JSON."""
        _write(self.folder / name, what)

    def _result(self, model: str, form: str, kind: str = "loss") -> Path:
        return self.folder / kind / model / f"{_slug(form)}.json"


def _write(path: Path, what: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(what)))


def _slug(form: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in form).split()).lower()


def bytes_of(path: Path) -> int:
    """Return the size of a model with its external data."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def constants_of(path: Path) -> int:
    """Return the bytes of the constants of a model."""
    tensors = _constants(onnx.load(path, load_external_data=False).graph)
    return sum(math.prod(each.dims) * BITS.get(each.data_type, _bits(each.data_type)) // 8 for each in tensors)


def _constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Return the constants of a graph, and of those inside its nodes."""
    held = list(graph.initializer)
    for node in graph.node:
        held += [attribute.t for attribute in node.attribute if node.op_type == "Constant"]
        for attribute in node.attribute:
            held += _constants(attribute.g) if attribute.HasField("g") else []
    return held


def _bits(kind: int) -> int:
    return 8 * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize if kind else 0


def outputs_of(path: Path, samples: Sequence[Feeds]) -> list[list[np.ndarray]]:
    """Run a file on samples as users do: one thread, default optimizations."""
    model = TimedModel(path, Settings(1))
    return [[np.asarray(value) for value in model.ready(feeds)()] for feeds in samples]


def loss(
    reference: Sequence[Sequence[np.ndarray]], results: Sequence[Sequence[np.ndarray]]
) -> tuple[float, float, int]:
    """Return the largest relative L2 of any output, and the top-1 agreement of the first output and its rows."""
    worst = 0.0
    for index in range(len(reference[0])):
        a = np.concatenate([row[index].ravel().astype(np.float64) for row in reference])
        b = np.concatenate([row[index].ravel().astype(np.float64) for row in results])
        worst = max(worst, float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30)))
    same = [a[0].argmax(-1) == b[0].argmax(-1) for a, b in zip(reference, results, strict=True)]
    rows = sum(each.size for each in same)
    return worst, sum(int(each.sum()) for each in same) / rows, rows


def make(store: Store, case: Case, forms: Sequence[str], *, again: bool) -> None:
    """Make the forms of a model that are missing, and measure their loss."""
    forms = [form for form in forms if form not in LANGUAGE or case.name.startswith("smollm2")]
    wanted = [form for form in (FLOAT32, *forms) if again or store.result(case.name, form) is None]
    if not wanted:
        return
    samples = case.samples("unseen")
    reference = outputs_of(case.model, samples)
    for form in wanted:
        path = store.file(case, form)
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        result = Result(case.name, form)
        try:
            with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):  # peers leave files where they run
                note = FORMS[form](case, path) if form != FLOAT32 else None
            seconds = time.perf_counter() - began
            error, top1, rows = loss(reference, outputs_of(path, samples))
            top = top1 if case.has_classes else None
            size = (bytes_of(path), constants_of(path))
            result = Result(case.name, form, *size, error, top, rows, seconds, None, note)
        except Exception as failure:  # a form that cannot be made is a result
            text = " ".join(f"{type(failure).__name__}: {failure}".split())
            result = Result(case.name, form, error=text[:300])
            path.unlink(missing_ok=True)
        store.save(result)
        shown = result.error or f"L2 {result.relative_l2:.5f} top-1 {result.top1} {result.bytes / 1e6:.3f} MB"
        print(f"{case.name:20} {form:32} {shown}", flush=True)


def measure(store: Store, case: Case, forms: Sequence[str], seconds: float, *, again: bool) -> None:
    """Time the forms of a model that were not timed yet, at each of its sizes."""
    there = [form for form in forms if (found := store.result(case.name, form)) is not None and found.error is None]
    there = [form for form in there if again or not store.timing(case.name, form)]
    for start in range(0, len(there), TOGETHER):
        batch = there[start : start + TOGETHER]
        timings: dict[str, dict[str, Timing]] = {form: {} for form in batch}
        for size, feeds in case.timed().items():
            for form, timing in raced(store, case, batch, feeds, seconds).items():
                timings[form][size] = timing
        for form, timing in timings.items():
            store.save_timing(case.name, form, timing)
            shown = ", ".join(f"{size}: {t.ratio:.3f} [{t.low:.3f}, {t.high:.3f}]" for size, t in timing.items())
            print(f"{case.name:20} {form:32} {shown}", flush=True)


def raced(
    store: Store, case: Case, forms: Sequence[str], feeds: Feeds, seconds: float, reference: str = FLOAT32
) -> dict[str, Timing]:
    """Time forms in turns with the float32 file or another; with one thread, processor time leaves out other work."""

    def contender(form: str) -> interleaving.Run:
        return interleaving.slot(TimedModel(store.file(case, form), Settings(1)).ready(feeds), now=time.thread_time)

    runs = {form: contender(form) for form in (reference, *forms)}
    slow = runs[reference]() > 0.4
    fewest = interleaving.MIN_SLOW_ROUNDS if slow else interleaving.MIN_ROUNDS
    race = interleaving.race(runs, twin=contender(reference), seconds=seconds, fewest=fewest)
    base = 1000 * statistics.median(race.seconds[reference])
    found: dict[str, Timing] = {}
    for form in forms:
        compared = race.comparison(form)
        median = 1000 * statistics.median(race.seconds[form])
        found[form] = Timing(median, compared.ratio, compared.low, compared.high, str(compared.finding), base)
    return found


def check_tags(store: Store, case: Case, forms: Sequence[str]) -> None:
    """Run the other commands on our forms of a model, and store what they find."""
    for form in forms:
        result = store.result(case.name, form)
        if form in OURS and result is not None and result.error is None:
            found = precision_checks.tagged(case, store.file(case, form))
            store.write(f"tags/{case.name}/{_slug(form)}.json", found)
            print(f"{case.name:20} {form:32} {found}", flush=True)


def rows_of(store: Store, cases: Sequence[Case]) -> Rows:
    """Return all stored results."""
    found: Rows = {}
    for case in cases:
        plain = store.result(case.name, FLOAT32)
        assert plain is not None
        results = {form: store.result(case.name, form) for form in (FLOAT32, *FORMS)}
        found[case.name] = {
            form: Row(
                case,
                result,
                result.bytes / plain.bytes,
                result.constants / plain.constants,
                store.timing(case.name, form),
            )
            for form, result in results.items()
            if result is not None
        }
    return found


def tabulate(store: Store, names: Sequence[str]) -> None:
    """Write the page from what is stored."""
    there = [name for name in names if store.result(name, FLOAT32) is not None]
    cases = [store.case(name) for name in there]
    precision_table.PAGE.write_text(
        precision_table.page(cases, rows_of(store, cases), precision_checks.section(store.folder))
    )


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "sardonyx-precision", help="models, forms and results")
    parser.add_argument("--packages", type=Path, default=Path(sys.prefix) / "precision", help="as `make precision` has")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--form", nargs="*", default=list(FORMS), choices=FORMS, metavar="FORM")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--timing-only", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one race")
    parser.add_argument("--again", action="store_true", help="also what is stored")
    parser.add_argument("--tags", action="store_true", help="run the other commands on the quantized files")
    parser.add_argument("--memory", action="store_true", help="peak memory of quantizing a file of 1.2 GB")
    parser.add_argument("--table", action="store_true", help="write precision.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Make, measure or tabulate."""
    asked = parsed(arguments)
    sys.path.append(str(asked.packages))
    precision_forms.quiet()
    store = Store(asked.cache, asked.packages)
    if asked.table:
        tabulate(store, asked.only)
        return
    if asked.memory:
        found = precision_checks.memory(asked.cache / "large", ("int8", "int4"))
        store.write("memory.json", found)
        print(*found, sep="\n")
        return
    for name in asked.only:
        case = store.case(name)
        if asked.tags:
            check_tags(store, case, asked.form)
            continue
        if not asked.timing_only:
            make(store, case, asked.form, again=asked.again)
        if not asked.no_timing:
            measure(store, case, asked.form, asked.seconds, again=asked.again)


if __name__ == "__main__":
    main(sys.argv[1:])

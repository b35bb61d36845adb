"""One model against the optimizer: both targets and the fewest nodes, checked on hostile feeds."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import sardonyx
from fuzzing import comparing, running
from fuzzing.running import Feed
from sardonyx import passes
from sardonyx.ir import io
from sardonyx.verification.upcast import upcast

SETTINGS: dict[str, dict[str, Any]] = {
    "portable": {},
    "ort": {"target": "ort"},
    "fewest": {"target": "ort", "options": sardonyx.OptimizeOptions(fewest_nodes=True)},
}
SECONDS = 10
FUSED = ("Attention", "LayerNormalization", "RMSNormalization", "RotaryEmbedding")
GROWTH, SLACK = 1.01, 64 * 1024
TOLERATED = {
    "special": "a pass that rounds otherwise differs on inf, NaN or the largest numbers",
    "overflow": "the source overflows, and the result computes in another order or in more precision",
    "unsteady": "the source itself does not give the same twice",
    "lenient": "the source breaks the standard, which the runtime sees only where shapes are known",
    "reduction": "the runtime gives a reduction of nothing the shape of its input, against the standard",
    "half": "the same in single precision: which half-precision operators round depends on the kernels around them",
    "undefined": "a number is cast to an integer type that does not hold it: kernels answer what the processor does",
    "buffers": "the runtime plans its buffers by a wrong shape of its own",
    "empty": "the runtime's fused kernel takes no empty input",
}
NAMES = frozenset(each.name for each in passes.ALL)
EXACT = frozenset(each.name for each in passes.ALL if each.accuracy.value == "exact")


class TooSlow(BaseException):
    """The time is over; no handler of ordinary exceptions sees it."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with one result."""

    kind: str  # wrong | crash | invalid | interface | size | slow | unrunnable | bits, or one of TOLERATED
    setting: str
    text: str
    feed: Feed | None = None
    feed_name: str = ""
    fired: tuple[str, ...] = ()

    @property
    def grave(self) -> bool:
        """Whether it counts as a fault."""
        return self.kind not in TOLERATED


@dataclass
class Judged:
    """What became of one model."""

    findings: list[Finding] = field(default_factory=list)
    fired: dict[str, tuple[str, ...]] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    hidden: int = 0  # outputs that are NaN in the source only because -inf hides a whole row, and 0 afterwards
    rounding: int = 0  # outputs whose difference the rounding of the source explains
    slowest: float = 0.0


@contextlib.contextmanager
def limited(seconds: int) -> Generator[None]:
    """Raise TooSlow after so many seconds; a main thread's matter."""

    def stop(_number: int, _frame: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Source:
    """A model that the runtime takes, and its answers on the feeds that it takes."""

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[tuple[str, Feed]]) -> None:
        self.model = model
        self.names = [each.name for each in model.graph.output]
        self.ops = {node.op_type for node in model.graph.node}
        self.half = comparing.is_half(model)
        session = running.Session(model)
        self.answers: list[tuple[str, Feed, list[Any]]] = []
        for name, feed in feeds:
            with contextlib.suppress(running.Failed):
                self.answers.append((name, feed, session.run(feed)))
        if any(_contradicts(model, outputs) for _, _, outputs in self.answers):
            self.answers = []  # its declared outputs are false, and the runtime plans its memory by them
        self.full = _valid(model, full=True) == ""
        self.checked = self.full or _valid(model, full=False) == ""
        self.rounding = comparing.Rounding(model)
        self._zeroed: running.Session | None = None

    def zeroed(self, feed: Feed) -> list[Any] | None:
        """The answers with 0 for the probabilities of rows that are hidden whole; None where nothing changes."""
        if self._zeroed is None:
            changed = comparing.with_hidden_rows_zero(self.model)
            if changed is None:
                return None
            with contextlib.suppress(running.Failed):
                self._zeroed = running.Session(changed)
        if self._zeroed is None:
            return None
        try:
            return self._zeroed.run(feed)
        except running.Failed:
            return None


def _contradicts(model: onnx.ModelProto, outputs: Sequence[Any]) -> bool:
    """Whether an output has another shape than the model declares."""
    for value, output in zip(model.graph.output, outputs, strict=True):
        declared = value.type.tensor_type
        if not isinstance(output, np.ndarray) or not declared.HasField("shape"):
            continue
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared.shape.dim]
        if len(dims) != output.ndim or any(d not in (None, size) for d, size in zip(dims, output.shape, strict=True)):
            return True
    return False


def judge(source: Source, settings: Sequence[str] = tuple(SETTINGS), **options: Any) -> Judged:
    """Everything wrong with the results of one model; at most one finding for each setting."""
    judged = Judged(before=len(source.model.graph.node))
    seen: dict[bytes, str] = {}
    for setting in settings:
        finding, made = _optimized(source, setting, judged, options)
        if finding is None and made is not None:
            data = made.SerializeToString(deterministic=True)
            if data in seen:
                continue
            seen[data] = setting
            finding = _static(source, made, setting, len(data)) or _compared(source, made, setting, judged)
        if finding is not None:
            judged.findings.append(finding)
    return judged


def _optimized(
    source: Source, setting: str, judged: Judged, options: dict[str, Any]
) -> tuple[Finding | None, onnx.ModelProto | None]:
    began = time.perf_counter()
    try:
        with limited(SECONDS):
            run = sardonyx.optimize(source.model, verify="off", **SETTINGS[setting], **options)
            made = io.to_proto(run.model)
    except TooSlow:
        return Finding("slow", setting, f"did not finish in {SECONDS} s"), None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        text = f"{type(error).__name__}: {running.first_line(error)}"
        text += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
        involved = (Path(each.filename).stem.replace("_", "-") for each in frames)
        return Finding(
            "crash", setting, text, fired=tuple(dict.fromkeys(name for name in involved if name in NAMES))
        ), None
    judged.slowest = max(judged.slowest, time.perf_counter() - began)
    judged.fired[setting] = tuple(each.name for each in run.passes if each.rewrites)
    judged.after = len(made.graph.node)
    return None, made


def _static(source: Source, made: onnx.ModelProto, setting: str, size: int) -> Finding | None:
    """What is wrong without running anything."""
    if _interface(source.model) != _interface(made):
        return Finding("interface", setting, "the inputs or outputs changed")
    allowed = GROWTH * source.model.ByteSize() + SLACK
    if size > allowed:
        return Finding("size", setting, f"the file grew from {source.model.ByteSize()} to {size} bytes")
    if source.checked and (text := _valid(made, full=source.full)):
        return Finding("invalid", setting, text)
    return None


def _interface(model: onnx.ModelProto) -> list[list[tuple[str, bytes]]]:
    faces = (model.graph.input, model.graph.output)
    return [[(each.name, each.type.SerializeToString(deterministic=True)) for each in face] for face in faces]


def _valid(model: onnx.ModelProto, *, full: bool) -> str:
    try:
        onnx.checker.check_model(model, full_check=full)
    except Exception as error:
        return " ".join(str(error).split())[:200]
    return ""


def _compared(source: Source, made: onnx.ModelProto, setting: str, judged: Judged) -> Finding | None:
    """The first fault on the feeds; where there is none, the first difference that is tolerated."""
    fired, mild = judged.fired[setting], None
    try:
        session = running.Session(made)
    except running.Failed as failed:
        lenient = "InferenceError" in str(failed) and comparing.breaks_the_standard(source.model, source.answers[0][1])
        return Finding("lenient" if lenient else "unrunnable", setting, f"does not load: {failed}", fired=fired)
    exact = all(name in EXACT for name in fired)
    for name, feed, answer in source.answers:
        try:
            given = session.run(feed)
        except running.Failed as failed:
            kind, text = _unrunnable(made, feed, str(failed)), f"does not run: {failed}"
        else:
            kind, text = _difference(source, (name, feed, answer), given, made, judged, exact=exact)
        if text:
            found = Finding(kind, setting, text, feed, name, fired)
            if found.grave:
                return found
            mild = mild or found
    return mild


def _empty(feed: Feed) -> bool:
    return any(getattr(array, "size", 1) == 0 for array in feed.values())


def _unrunnable(made: onnx.ModelProto, feed: Feed, text: str) -> str:
    """What it counts as that a result does not run."""
    if _empty(feed) and any(each in text for each in FUSED):
        return "empty"
    if _empty(feed) and "Name:''" in text and any(node.op_type == "Attention" for node in made.graph.node):
        return "empty"  # in what the runtime expands an Attention without a kernel into
    if "re-use buffer" not in text:
        return "unrunnable"
    bare = onnx.ModelProto()  # without what the result declares: where the runtime still stumbles, over its own shapes
    bare.CopyFrom(made)
    del bare.graph.value_info[:]
    for each in bare.graph.output:
        each.type.tensor_type.ClearField("shape")
    try:
        running.Session(bare).run(feed)
    except running.Failed:
        return "buffers"
    return "unrunnable"


def _difference(
    source: Source,
    given: tuple[str, Feed, list[Any]],
    made: list[Any],
    result: onnx.ModelProto,
    judged: Judged,
    *,
    exact: bool,
) -> tuple[str, str]:
    """The kind of difference between two runs, and what it is; nothing where rounding explains it."""
    name, feed, answer = given
    text, kind = _outputs(source, feed, answer, made, judged), "wrong"
    # the runtime's Where adds its operands up, and loses the sign of a zero
    if not text and exact and not source.half and "Where" not in source.ops:
        text, kind = _first(source.names, answer, made, comparing.bits_differ), "bits"
    if not text:
        return "", ""
    if not comparing.steady(source.model, feed, answer) or (_empty(feed) and "Conv" in source.ops):
        return "unsteady", text  # a convolution without channels leaves its output as it finds the memory
    if _casts_out_of_range(source, feed):
        return "undefined", text
    if _reduces_nothing(source, feed):
        return "reduction", text
    if _empty(feed) and any(each.name == "allowzero" for node in source.model.graph.node for each in node.attribute):
        return "lenient", text  # a -1 beside a 0 that is meant is an error by the standard, and 1 to the runtime
    if [_kind_of(each) for each in answer] != [_kind_of(each) for each in made]:
        return kind, text
    if name.startswith("special") and (not exact or "Pow" in source.ops):  # Pow computes integers as doubles
        return "special", text
    if source.half and _same_in_single_precision(source.model, result, feed):
        return "half", text
    if (not exact or source.half) and comparing.overflows(source.model, feed):
        return "overflow", text
    return kind, text


def _reduces_nothing(source: Source, feed: Feed) -> bool:
    """Whether a reduction has an input without elements."""
    reductions = [node for node in source.model.graph.node if node.op_type.startswith(("Reduce", "Arg"))]
    if not reductions:
        return False
    values = running.values(source.model, feed)
    return any(getattr(values.get(node.input[0], feed.get(node.input[0])), "size", 1) == 0 for node in reductions)


def _casts_out_of_range(source: Source, feed: Feed) -> bool:
    """Whether a float is cast to an integer type that does not hold it."""
    casts = [node for node in source.model.graph.node if node.op_type == "Cast"]
    values = running.values(source.model, feed) if casts else {}
    for node in casts:
        array = values.get(node.input[0])
        target = onnx.helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
        if array is None or array.dtype.kind not in "fV" or target.kind not in "iu":
            continue
        limits, numbers = np.iinfo(target), np.trunc(array.astype(np.float64))
        if not ((numbers >= limits.min) & (numbers <= limits.max)).all():
            return True
    return False


def _same_in_single_precision(before: onnx.ModelProto, after: onnx.ModelProto, feed: Feed) -> bool:
    """Whether the two agree when what they compute in half precision is computed in single precision."""
    answers: list[list[Any]] = []
    for model in (before, after):
        wide = upcast(io.from_proto(model))
        try:
            answers.append(running.Session(model if wide is None else io.to_proto(wide)).run(feed))
        except running.Failed:
            return False
    return not any(comparing.difference(x, y) for x, y in zip(*answers, strict=True))


def _kind_of(array: Any) -> Any:
    return len(array) if isinstance(array, list) else (array.dtype, array.shape)


def _first(names: Sequence[str], answer: list[Any], given: list[Any], compare: Any) -> str:
    pairs = zip(names, answer, given, strict=True)
    return next((f"{name}: {text}" for name, x, y in pairs if (text := compare(x, y))), "")


def _outputs(source: Source, feed: Feed, answer: list[Any], given: list[Any], judged: Judged) -> str:
    """The first difference between two runs that neither rounding nor a hidden row explains."""
    if not _first(source.names, answer, given, comparing.difference):
        return ""
    zeroed = source.zeroed(feed)
    if zeroed is not None and not _first(source.names, zeroed, given, comparing.difference):
        judged.hidden += 1
        return ""
    noise = source.rounding.around(feed, answer)
    for name, x, y, around in zip(source.names, answer, given, noise, strict=True):
        if not (text := comparing.difference(x, y)):
            continue
        if around is None and not isinstance(x, list) and (x.dtype, x.shape) == (y.dtype, y.shape):
            judged.rounding += 1
        elif comparing.difference(x, y, around):
            return f"{name}: {text}"
        else:
            judged.rounding += 1
    return ""

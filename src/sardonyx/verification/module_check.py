"""Whether a module that was cut out of a model computes what it computed there, and what the live module computes.

The whole model is run with the boundary of the cut as additional outputs. On the values it has there, the cut must give
what the whole gives; on the tensors that hooks saw going into the live module, it must give what they saw coming out.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.module_extraction import Extract
from sardonyx.records.run import Accuracy, Trial, Verdict
from sardonyx.runtime import Array, Value
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification import noise
from sardonyx.verification.compare import Given, Oracle, Progress
from sardonyx.verification.interface import random_outputs
from sardonyx.verification.judge import Judge, Noise
from sardonyx.verification.padding import Padding, hidden_positions, unseeing
from sardonyx.verification.reference import Answer
from sardonyx.verification.subject import Subject
from sardonyx.verification.tolerance import Difference, float_difference, is_float, limit, within

Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class LiveProof:
    """How a cut compares with the live module, and which of its inputs and outputs are the module's own."""

    verdict: Verdict
    arguments: Mapping[str, str]  # input of the cut -> argument of the module
    results: Mapping[str, str]  # output of the cut -> what the module calls it
    dropped: tuple[str, ...]  # what the module returns and the graph does not compute


class ModuleProof:
    """One cut and the model it was cut from; the whole is run once for all questions."""

    def __init__(
        self,
        whole: ir.Model,
        cut: Extract,
        *,
        inputs: Given = None,
        seeds: Sequence[int] = (0, 1, 2, 3),
        trials: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run the whole model on the given inputs and on drawn ones."""
        self._cut, self._threads = cut, threads
        probe = _with_boundary(whole, (*cut.inputs, *cut.outputs))
        self._names = [value.name or "" for value in probe.graph.outputs]
        self._oracle = Oracle(
            probe, inputs=inputs, seeds=seeds, trials=trials, threads=threads, progress=progress, own_types=True
        )
        self._answers = self._oracle.answers()

    def values(self, number: int = 0) -> Mapping[str, Value]:
        """The boundary as the whole model had it in one of the runs."""
        answer = self._answers[number]
        return {**answer.draw.feeds, **dict(zip(self._names, answer.outputs, strict=True))}

    def against_model(self) -> Verdict:
        """Whether the cut gives what the whole model has at its boundary."""
        began = time.perf_counter()
        judge = Judge(self._cut.outputs, Accuracy.REASSOCIATES, random_outputs(self._cut.model))
        trials = [self._try(number, answer, judge) for number, answer in enumerate(self._answers)]
        failures = tuple(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        return Verdict(
            passed=not failures,
            reference=f"the whole model in {self._oracle.name}",
            accuracy=Accuracy.REASSOCIATES,
            trials=tuple(trials),
            outputs=judge.outputs(),
            failures=failures,
            notes=tuple(self._oracle.not_covered + judge.notes),
            not_covered=tuple(self._oracle.not_covered),
            seconds=time.perf_counter() - began,
        )

    def _try(self, number: int, answer: Answer, judge: Judge) -> Trial:
        known = self.values(number)
        try:
            lines = judge.compare([known[name] for name in self._cut.outputs], self._run(known), lambda: None)
        except RuntimeFailure as failure:
            lines = [f"the module does not run on what the whole model has: {failure.message}"]
        return Trial(answer.seed, answer.draw.dims, answer.style, not lines, tuple(lines))

    def _run(self, known: Mapping[str, Value]) -> list[Value]:
        return self._engine.run({name: known[name] for name in self._cut.inputs if name in known})

    @functools.cached_property
    def _engine(self) -> RemoteSession:
        return Subject(self._cut.model).any_session(threads=self._threads)

    def against_live(
        self, name: str, inputs: Tensors, outputs: Tensors, disturbed: Tensors, lengths: Iterable[int] = ()
    ) -> LiveProof:
        """Whether the cut gives what a live module of this name gave; the first run was on the same inputs.

        Args:
            name: Of the module.
            inputs: What it was given.
            outputs: What it answered.
            disturbed: What it answers with other numbers in attention rows that see no key.
            lengths: How many queries and keys the attentions with such rows have.
        """
        began = time.perf_counter()
        feeds = self._answers[0].draw.feeds
        hidden = hidden_positions(feeds[mask] for mask in self._oracle.inputs.masks)
        places = unseeing(list(outputs.values()), [disturbed[each] for each in outputs], hidden, lengths)
        padding = {each: place for each, place in zip(outputs, places, strict=True) if place is not None}
        known = dict(self.values())
        arguments = {
            mine: theirs for mine in self._cut.inputs if (theirs := _same(_tensor(known.get(mine)), inputs)) is not None
        }
        known |= {mine: inputs[theirs] for mine, theirs in arguments.items()}
        given = {mine: value for mine, value in known.items() if mine in self._cut.inputs}
        answers = dict(zip(self._cut.outputs, self._run(known), strict=True))
        tensors = {mine: tensor for mine, value in answers.items() if (tensor := _tensor(value)) is not None}
        found = {
            theirs: mine
            for theirs, array in outputs.items()
            if (mine := _same(array, tensors, padding.get(theirs))) is not None
        }
        missing = [theirs for theirs in outputs if theirs not in found]
        passed_on = {theirs for theirs in missing if any(_equal(outputs[theirs], array) for array in inputs.values())}
        lines, judge = self._judge(found, outputs, tensors, given, padding)
        if not found:
            lines = [f"no output of the cut is what {name or 'the model'} gave: {_nearest(outputs, tensors)}"]
        verdict = Verdict(
            passed=not lines,
            reference=f"the live module {name}" if name else "the live model",
            accuracy=Accuracy.REASSOCIATES,
            trials=(Trial(None, {}, "captured", not lines, tuple(lines)),),
            outputs=judge.outputs(),
            failures=tuple(lines),
            notes=(
                *judge.left_out.lines,
                *judge.notes,
                *(f"it hands on '{theirs}' as it came" for theirs in missing if theirs in passed_on),
            ),
            not_covered=tuple(judge.left_out.lines),
            seconds=time.perf_counter() - began,
        )
        dropped = tuple(theirs for theirs in missing if theirs not in passed_on)
        return LiveProof(verdict, arguments, {mine: theirs for theirs, mine in found.items()}, dropped)

    def _judge(
        self,
        found: Mapping[str, str],
        outputs: Tensors,
        tensors: Tensors,
        given: Mapping[str, Value],
        padding: Mapping[str, Padding],
    ) -> tuple[list[str], Judge]:
        """Hold what was found to be the same to the tolerance of its type and of the cut's own noise."""
        judge = Judge(list(found), Accuracy.REASSOCIATES, frozenset())
        mine = [tensors[name] for name in found.values()]

        def measured() -> Noise | None:
            copy = noise.disturbed(self._cut.model)
            if copy is None:
                return None
            probe = Subject(copy).any_session(threads=self._threads)
            places = [self._cut.outputs.index(name) for name in found.values()]

            def disturb(draw: int) -> list[Value]:
                moved = probe.run({**given, **noise.draw(draw)})
                return [moved[place] for place in places]

            return Noise(mine, disturb)

        left_out = [padding.get(name) for name in found]
        return judge.compare([outputs[name] for name in found], mine, measured, padding=left_out), judge


def _with_boundary(whole: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of the model that also gives out the named values."""
    copy = whole.clone()
    there = {value.name for value in (*copy.graph.inputs, *copy.graph.outputs)}
    wanted = set(names) - there
    copy.graph.outputs.extend(v for node in copy.graph for v in node.outputs if v.name in wanted)
    return copy


def _tensor(value: Value) -> Array | None:
    return value if isinstance(value, np.ndarray) else None


def _equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))


def _distances(array: Array, tensors: Tensors) -> dict[str, Difference]:
    """How far apart a float array is from all of its type and shape."""
    alike = {n: other for n, other in tensors.items() if other.dtype == array.dtype and other.shape == array.shape}
    return {name: float_difference(array, other) for name, other in alike.items()}


def _same(array: Array | None, tensors: Tensors, padding: Padding | None = None) -> str | None:
    """The tensor that is meant to be this array, roundings of the way there aside."""
    if array is None:
        return None
    if padding is not None:
        alike = {name: padding.without(other) for name, other in tensors.items() if other.shape == array.shape}
        return _same(padding.without(array), alike)
    if not is_float(array.dtype):
        return next((name for name, other in tensors.items() if _equal(array, other)), None)
    close = limit(array.dtype, Accuracy.APPROXIMATES)
    near = {name: gap for name, gap in _distances(array, tensors).items() if within(gap, close)}
    return min(near, key=lambda name: near[name].rms, default=None)


def _nearest(outputs: Tensors, tensors: Tensors) -> str:
    """The smallest distance there is, in words."""
    gaps = [
        (gap.rms, theirs, mine)
        for theirs, array in outputs.items()
        if is_float(array.dtype)
        for mine, gap in _distances(array, tensors).items()
    ]
    if not gaps:
        return "none has the type and shape of one"
    rms, theirs, mine = min(gaps)
    return f"'{mine}' is nearest to '{theirs}', {rms:.3g} of its size away"


def other_weights(model: ir.Model, weights: Iterable[tuple[str, Array]]) -> list[str]:
    """Names of the weights that the file stores under the same name and shape, with other values.

    A weight that the file does not have by name, because a rewrite or an exporter changed it, says nothing.

    Args:
        model: the file.
        weights: those of a module, by name.
    """
    stored = model.graph.initializers
    return [name for name, array in weights if name in stored and _differs(stored[name].const_value, array)]


def _differs(stored: ir.TensorProtocol | None, array: Array) -> bool:
    if stored is None or tuple(stored.shape.numpy()) != array.shape:
        return False
    values = stored.numpy()
    return not np.array_equal(values, array.astype(values.dtype))

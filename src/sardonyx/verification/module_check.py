"""Verify that a module extracted from a model computes what it computed there, and what the live module computes.

The whole model is run with the boundary of the extracted module as additional outputs. On the input values found there,
the extracted model must give the output values found there; on the tensors that hooks captured at the inputs of the
live module, it must give the tensors captured at its outputs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.inputs.generator import ExampleInputs
from sardonyx.ir.module_region import Extract
from sardonyx.records.run import Accuracy, Trial, Verdict
from sardonyx.runtime import Array, Value
from sardonyx.runtime.observe import Observed
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification.compare import Oracle, Progress
from sardonyx.verification.double_precision import DoublePrecision
from sardonyx.verification.exclusions import Padding, hidden_positions, keyless_padding
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.reference import Answer
from sardonyx.verification.subject import Subject, random_outputs
from sardonyx.verification.tolerance import Difference, float_difference, is_float, limit, within

Tensors = Mapping[str, Array]


class LiveModuleCheck(Struct, frozen=True):
    """The comparison of an extracted model with the live module, and which inputs and outputs correspond."""

    verdict: Verdict
    arguments: Mapping[str, str]  # input of the extracted model → argument of the module
    results: Mapping[str, str]  # output of the extracted model → name of the module's output
    dropped: tuple[str, ...]  # outputs of the module that the graph does not compute


class ModuleCheck:
    """Verifies one extracted model; the model it was extracted from is run once for all checks."""

    def __init__(
        self,
        whole: ir.Model,
        cut: Extract,
        *,
        inputs: ExampleInputs = None,
        seeds: Sequence[int] = (0, 1, 2, 3),
        trials: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Run the whole model on `inputs` and on generated inputs."""
        self._cut, self._threads = cut, threads
        probe = _with_boundary(whole, (*cut.inputs, *cut.outputs))
        self._names = [value.name or "" for value in probe.graph.outputs]
        self._oracle = Oracle(
            probe, inputs=inputs, seeds=seeds, trials=trials, threads=threads, progress=progress, own_types=True
        )
        self._answers = self._oracle.answers()

    def values(self, number: int = 0) -> Mapping[str, Value]:
        """Return the values at the boundary in one run of the whole model."""
        answer = self._answers[number]
        return {**answer.inputs.feeds, **dict(zip(self._names, answer.outputs, strict=True))}

    def against_model(self) -> Verdict:
        """Compare the extracted model with the values at its boundary in the whole model."""
        began = time.perf_counter()
        comparer = OutputComparer(self._cut.outputs, Accuracy.REASSOCIATES, random_outputs(self._cut.model))
        trials = [self._try(number, answer, comparer) for number, answer in enumerate(self._answers)]
        failures = tuple(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        return Verdict(
            passed=not failures,
            reference=f"the whole model in {self._oracle.name}",
            accuracy=Accuracy.REASSOCIATES,
            trials=tuple(trials),
            outputs=comparer.outputs(),
            failures=failures,
            notes=tuple(self._oracle.not_covered + comparer.notes),
            not_covered=tuple(self._oracle.not_covered),
            seconds=time.perf_counter() - began,
        )

    def _try(self, number: int, answer: Answer, comparer: OutputComparer) -> Trial:
        values = self.values(number)
        try:
            lines = comparer.compare([values[name] for name in self._cut.outputs], self._run(values), lambda: None)
        except RuntimeFailure as failure:
            lines = [f"the module does not run on the values of the whole model: {failure.message}"]
        return Trial(answer.seed, answer.inputs.dims, answer.style, not lines, tuple(lines))

    def _run(self, values: Mapping[str, Value]) -> list[Value]:
        return self._engine.run({name: values[name] for name in self._cut.inputs if name in values})

    @functools.cached_property
    def _engine(self) -> RemoteSession:
        return Subject(self._cut.model).any_session(threads=self._threads)

    def against_live(
        self, name: str, inputs: Tensors, outputs: Tensors, disturbed: Tensors, lengths: Iterable[int] = ()
    ) -> LiveModuleCheck:
        """Compare the extracted model with a live module; the first run of the whole model had the same inputs.

        It received the inputs and returned the outputs; these are `disturbed` with other numbers in attention rows that
        see no key, of `lengths` queries and keys.
        """
        began = time.perf_counter()
        feeds = self._answers[0].inputs.feeds
        hidden = hidden_positions(feeds[mask] for mask in self._oracle.inputs.masks)
        places = keyless_padding(list(outputs.values()), [disturbed[output] for output in outputs], hidden, lengths)
        padding = {output: place for output, place in zip(outputs, places, strict=True) if place is not None}
        values = dict(self.values())
        arguments = {
            own: live for own in self._cut.inputs if (live := _same(_tensor(values.get(own)), inputs)) is not None
        }
        values |= {own: inputs[live] for own, live in arguments.items()}
        cut_inputs = {own: value for own, value in values.items() if own in self._cut.inputs}
        results = dict(zip(self._cut.outputs, self._run(values), strict=True))
        tensors = {own: tensor for own, value in results.items() if (tensor := _tensor(value)) is not None}
        pairs = {
            live: own
            for live, array in outputs.items()
            if (own := _same(array, tensors, padding.get(live))) is not None
        }
        missing = [live for live in outputs if live not in pairs]
        passed_on = {live for live in missing if any(_equal(outputs[live], array) for array in inputs.values())}
        lines, comparer = self._compare_pairs(pairs, outputs, tensors, cut_inputs, padding)
        if not pairs:
            nearest = _nearest(outputs, tensors)
            lines = [f"no output of the extracted model matches one of {name or 'the model'}: {nearest}"]
        verdict = Verdict(
            passed=not lines,
            reference=f"the live module {name}" if name else "the live model",
            accuracy=Accuracy.REASSOCIATES,
            trials=(Trial(None, {}, "captured", not lines, tuple(lines)),),
            outputs=comparer.outputs(),
            failures=tuple(lines),
            notes=(
                *comparer.left_out,
                *comparer.notes,
                *(f"its output '{live}' is one of its inputs" for live in missing if live in passed_on),
            ),
            not_covered=tuple(comparer.left_out),
            seconds=time.perf_counter() - began,
        )
        dropped = tuple(live for live in missing if live not in passed_on)
        return LiveModuleCheck(verdict, arguments, {own: live for live, own in pairs.items()}, dropped)

    def _compare_pairs(
        self,
        pairs: Mapping[str, str],
        outputs: Tensors,
        tensors: Tensors,
        cut_inputs: Mapping[str, Value],
        padding: Mapping[str, Padding],
    ) -> tuple[list[str], OutputComparer]:
        """Compare pairs of outputs within the tolerance of their type and the rounding error of the extracted model."""
        comparer = OutputComparer(list(pairs), Accuracy.REASSOCIATES, frozenset())
        results = [tensors[name] for name in pairs.values()]

        def precise() -> Precise | None:
            exact = DoublePrecision(self._cut.model, constants="widen", threads=self._threads).run(cut_inputs)
            if exact is None:
                return None
            right = [exact[self._cut.outputs.index(name)] for name in pairs.values()]
            return Precise(roundings=lambda: [(results, right)])

        left_out = [padding.get(name) for name in pairs]
        return comparer.compare([outputs[name] for name in pairs], results, precise, padding=left_out), comparer


def _with_boundary(whole: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of the model that has the named values as additional outputs, as far as nodes compute them."""
    observed = Observed(whole.clone())
    computed = {value.name for node in whole.graph for value in node.outputs}
    observed.show(name for name in names if name in computed)
    return observed.model


def _tensor(value: Value) -> Array | None:
    return value if isinstance(value, np.ndarray) else None


def _equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one, other))


def _distances(array: Array, tensors: Tensors) -> dict[str, Difference]:
    """Return the difference of a float array from every tensor of its type and shape."""
    alike = {n: other for n, other in tensors.items() if other.dtype == array.dtype and other.shape == array.shape}
    return {name: float_difference(array, other) for name, other in alike.items()}


def _same(array: Array | None, tensors: Tensors, padding: Padding | None = None) -> str | None:
    """Return the name of the tensor that equals this array up to rounding, or None if there is none."""
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
    """Describe the smallest distance between an output of the module and one of the extracted model."""
    gaps = [
        (gap.rms, live, own)
        for live, array in outputs.items()
        if is_float(array.dtype)
        for own, gap in _distances(array, tensors).items()
    ]
    if not gaps:
        return "none has the type and shape of one"
    rms, live, own = min(gaps)
    return f"'{own}' is nearest to '{live}', with a relative difference of {rms:.3g} (root mean square)"


def other_weights(model: ir.Model, weights: Iterable[tuple[str, Array]]) -> list[str]:
    """Return the names of weights that the file stores with the same name and shape but other values.

    Weights that the file does not store under their name, because a rewrite or exporter changed them, are not compared.
    """
    stored = model.graph.initializers
    return [name for name, array in weights if name in stored and _differs(stored[name].const_value, array)]


def _differs(stored: ir.TensorProtocol | None, array: Array) -> bool:
    if stored is None or tuple(stored.shape.numpy()) != array.shape:
        return False
    values = stored.numpy()
    return not np.array_equal(values, array.astype(values.dtype))

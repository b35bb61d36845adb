"""Decide every rewrite of a certificate, and from that every output of the model."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sardonyx_check.graphs import FLOATS, Graph, Model, Refused, Stored, Value
from sardonyx_check.numbers import INPUT, Array, Numbers, Real, Unlucky, primes
from sardonyx_check.replay import Replay, Rewrite, read
from sardonyx_check.trial import CLOSE, EQUAL, OPEN, UNEQUAL, NotAccepted, Plan, Trial, Unknown

ALL, ORDERS, TRIALS, REFUSED = "equal for all values", "equal for the orders tried", "by trials only", "refused"
_ANSWERS = (ALL, ORDERS, TRIALS, REFUSED)  # best first
_SIZES = (2, 3, 5, 7, 11, 13)
_MOST_BINDINGS = 3
_MOST_PRIMES = 20  # that are tried until all roots exist
_FOLDED, _EXPRESSION = 4.0, 1.0  # units in the last place by which a constant may differ from what it stands for
_MODES = (  # whether weights may be any, whether the order is random, what equality shows, whether only few may differ
    (True, True, ALL, False),
    (True, True, ALL, True),
    (True, False, ORDERS, False),
    (False, True, ORDERS, False),
    (False, False, ORDERS, False),
)


@dataclass
class Report:
    """What was found."""

    source: str
    result: str
    outputs: dict[str, tuple[str, str]] = field(default_factory=dict)  # answer and reason by name
    rewrites: int = 0
    passes: dict[str, Counter[str]] = field(default_factory=dict)  # answers by pass
    tried: list[dict[str, list[int]]] = field(default_factory=list)  # shapes of inputs
    constants: int = 0  # that stand for a value and are rounded
    units: float = 0.0  # in the last place, the largest distance of one

    @property
    def code(self) -> int:
        """The exit code."""
        worst = max((_ANSWERS.index(answer) for answer, _ in self.outputs.values()), default=0)
        return {ALL: 0, ORDERS: 0, TRIALS: 1, REFUSED: 3}[_ANSWERS[worst]]


def check(source: str | Path, result: str | Path, certificate: str | Path, *, seed: int | None = None) -> Report:
    """Check a result; raise Refused if the certificate does not belong to it or does not lead to it."""
    content = read(certificate)
    before, after = Model(source), Model(result)
    for name, model in (("source", before), ("result", after)):
        if content.get(name) != model.digests():
            raise Refused(f"the certificate is about another {name} than {model.path}")
    try:
        replay = Replay(before, after, content)
        replay.compare()
    except RecursionError:
        raise Refused("bodies are nested too deeply") from None
    if seed is None:  # depends on all three files, so that nobody can choose it
        seed = int.from_bytes(hashlib.sha256(repr((content, before.digests())).encode()).digest()[:4], "little")
    with np.errstate(all="ignore"):
        return _Check(replay, content.get("inputs") or {}, seed).report(Report(str(source), str(result)))


class _Check:
    def __init__(self, replay: Replay, recipe: dict[str, Any], seed: int) -> None:
        self._replay, self._recipe, self._seed = replay, recipe, seed
        self._plans: dict[Graph, Plan] = {}
        self._answers: dict[int, tuple[str, str]] = {}
        self._compared: Counter[int] = Counter()
        self._whole = not any(i.type.tensor_type.elem_type in FLOATS for i in replay.source.proto.graph.input)
        self._measured: dict[Value, float] = {}

    def report(self, report: Report) -> Report:
        """Run the trials."""
        rewrites = self._replay.rewrites
        self._answers = {r.number: (ALL, "") for r in rewrites}
        for shapes in self._accepted():
            if not self._at(shapes, len(report.tried)):
                continue
            report.tried.append({name: list(shape) for name, shape in shapes.items()})
            if len(report.tried) >= _MOST_BINDINGS:
                break
        if not report.tried:
            raise Refused(f"no inputs were found that the source accepts: {self._reason}")
        for rewrite in rewrites:
            answer, _ = self._answers[rewrite.number]
            if answer in (ALL, ORDERS) and rewrite.pairs and not self._compared[rewrite.number]:
                self._answers[rewrite.number] = TRIALS, "it was never reached, or nothing in it could be compared"
            report.passes.setdefault(rewrite.rule, Counter())[self._answers[rewrite.number][0]] += 1
        report.rewrites = len(rewrites)
        report.constants, report.units = len(self._replay.rounded), max(self._measured.values(), default=0.0)
        for info, value in zip(self._replay.source.proto.graph.output, self._replay.source.main.outputs, strict=True):
            report.outputs[info.name] = self._answer(value)
        open_ = [x.name for x, _ in self._replay.rounded if x not in self._measured]
        if open_:  # any output may depend on it
            worst = TRIALS, f"the value of constant {open_[0]!r} could not be computed"
            report.outputs = {n: max(a, worst, key=lambda x: _ANSWERS.index(x[0])) for n, a in report.outputs.items()}
        return report

    def _answer(self, output: Value) -> tuple[str, str]:
        """Return the worst answer for the rewrites that an output may depend on."""
        by_old = {old: r for r in self._replay.rewrites for old, _ in r.pairs}
        waiting, seen, worst = [output], {output}, (ALL, "")
        while waiting:
            value = waiting.pop()
            rewrite = by_old.get(value)
            if rewrite is not None:
                answer, reason = self._answers[rewrite.number]
                if _ANSWERS.index(answer) > _ANSWERS.index(worst[0]):
                    worst = answer, f"rewrite {rewrite.number} ({rewrite.rule}): {reason}" if reason else ""
            for other in _above(value):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        if any(r.graph.path for r in self._replay.rewrites):  # bodies and functions: any output may depend on them
            for r in self._replay.rewrites:
                answer, reason = self._answers[r.number]
                if r.graph.path and _ANSWERS.index(answer) > _ANSWERS.index(worst[0]):
                    worst = answer, f"rewrite {r.number} ({r.rule}): {reason}"
        return worst

    # Inputs

    def _accepted(self) -> Iterator[dict[str, tuple[int, ...]]]:
        """Yield shapes of the inputs: small ones of the declared dimensions, then those of the certificate."""
        declared = {i.name: i.type.tensor_type for i in self._replay.source.proto.graph.input}
        names = list(dict.fromkeys(_dim(i, k, d) for i, t in declared.items() for k, d in enumerate(t.shape.dim)
                                   if not d.HasField("dim_value")))  # fmt: skip
        choices = [dict(zip(names, itertools.cycle(_SIZES[k:] + _SIZES[:k]))) for k in range(2)]
        choices += [dict.fromkeys(names, 1), {name: 0 if k == 0 else 2 for k, name in enumerate(names)}]
        shapes: list[dict[str, tuple[int, ...]]] = []
        for sizes in choices:
            shapes.append({i: tuple(d.dim_value if d.HasField("dim_value") else sizes[_dim(i, k, d)]
                                    for k, d in enumerate(t.shape.dim)) for i, t in declared.items()})  # fmt: skip
        shapes += [{n: tuple(s) for n, s in each.items()} for each in self._recipe.get("shapes", ())]
        self._reason, last = "", None
        for number, each in enumerate(shapes):
            if each.keys() != declared.keys() or (each == last and names):
                continue
            last = each
            if not names and number >= 3:
                return
            yield each

    def _feeds(self, shapes: dict[str, tuple[int, ...]], n: Numbers, seed: int) -> dict[str, Any]:
        """Return random inputs: any real numbers, integers in the ranges of the certificate, truth values."""
        rng = np.random.default_rng((self._seed, seed))
        feeds: dict[str, Any] = {}
        for info in self._replay.source.proto.graph.input:
            type_, shape = info.type.tensor_type.elem_type, shapes[info.name]
            if info.type.WhichOneof("value") != "tensor_type" or type_ == onnx.TensorProto.STRING:
                raise Refused(f"input {info.name!r} is neither numbers nor truth values")
            if type_ in FLOATS:
                feeds[info.name] = n.random(rng.standard_normal(shape), type_, f"input {info.name} {seed}", INPUT)
            elif type_ == onnx.TensorProto.BOOL:
                feeds[info.name] = rng.integers(0, 2, shape).astype(bool)
            else:
                low, high = self._recipe.get("ranges", {}).get(info.name, (0, 1))
                dtype = helper.tensor_dtype_to_np_dtype(type_)
                feeds[info.name] = rng.integers(int(low), int(high) + 1, shape).astype(dtype)
        return feeds

    # Trials

    def _trial(self, shapes: dict[str, tuple[int, ...]], number: int, *, any_weights: bool, opaque: bool) -> Trial:
        for attempt, prime in enumerate(primes(self._seed + 1000 * number)):
            n = Numbers(prime, self._seed * 100 + number, opaque=opaque, strict=attempt < _MOST_PRIMES)
            trial = Trial(self._replay, n, any_weights=any_weights, plans=self._plans)
            try:
                trial.run(self._feeds(shapes, n, number))
            except Unlucky:
                continue
            return trial
        raise AssertionError

    def _at(self, shapes: dict[str, tuple[int, ...]], number: int) -> bool:
        """Decide all rewrites at one choice of sizes: for any order first, and in the true order what is left.

        Return whether the source accepts the sizes.
        """
        waiting = {n for n, (answer, _) in self._answers.items() if answer != REFUSED}
        worst: dict[int, tuple[int, str, bool]] = {}
        for index, (any_weights, opaque, claim, again) in enumerate(_MODES):
            if again and not any(worst[r][2] for r in waiting if r in worst):
                continue
            try:
                trial = self._trial(shapes, number * 10 + index + 10, any_weights=any_weights, opaque=opaque)
            except NotAccepted as error:
                self._reason = str(error)
                if not opaque:
                    return False
                continue
            self._check_constants(trial)
            for rewrite in sorted(waiting):
                found = trial.found.get(rewrite, (EQUAL, "", False))
                if found[0] == EQUAL:
                    waiting.discard(rewrite)
                    self._compared[rewrite] += trial.compared[rewrite]
                    self._lower(rewrite, claim, "")
                else:
                    worst[rewrite] = found
            if not waiting or all(r in worst and worst[r][0] == OPEN for r in waiting):
                break
        for rewrite in waiting:
            result, reason, _ = worst.get(rewrite, (OPEN, "the source does not accept any inputs", False))
            self._lower(rewrite, REFUSED if result == UNEQUAL else TRIALS, reason)
        return True

    def _lower(self, rewrite: int, answer: str, reason: str) -> None:
        if _ANSWERS.index(answer) > _ANSWERS.index(self._answers[rewrite][0]):
            self._answers[rewrite] = answer, reason

    def _check_constants(self, trial: Trial) -> None:
        """Refuse a stored constant that is not the rounded value that it stands for."""
        for constant, stored in self._replay.rounded:
            exact = trial.seen.get(constant.denotes) if constant.denotes is not None else None
            if exact is None or isinstance(exact, Unknown) or constant.denotes is None or constant in self._measured:
                continue
            units, where = _distance(exact, stored)
            if units > (_FOLDED if constant.denotes.replacement is constant else _EXPRESSION):
                raise Refused(f"constant {constant.name!r} is {units:.3g} units in the last place away from {where}")
            self._measured[constant] = units


def _distance(exact: Real | Array, stored: Stored) -> tuple[float, str]:
    """Return by how many units in the last place a stored tensor differs from exact numbers."""
    array = stored.array()
    if exact.shape != array.shape or not isinstance(exact, Real):
        return float("inf"), "a value of another shape"
    array = array.astype(np.float64)
    unit = {1: 2.0**-23, 10: 2.0**-10, 16: 2.0**-7, 11: 2.0**-52}[stored.type] * np.maximum(np.abs(exact.f), 2.0**-126)
    off = np.where(exact.f == array, 0.0, np.abs(exact.f - array) / unit)
    off = np.where(np.isnan(exact.f) & np.isnan(array), 0.0, off)
    return float(off.max(initial=0.0)), "the value that it stands for"


def _dim(name: str, axis: int, dim: Any) -> str:
    return dim.dim_param or f"{name}.{axis}"


def _above(value: Value) -> Iterator[Value]:
    """Yield what a value may depend on, before and after rewrites."""
    if value.replacement is not None:
        yield value.replacement
    if value.denotes is not None:
        yield value.denotes
    if value.producer is not None:
        from sardonyx_check.graphs import captured

        yield from (v for v in (*value.producer.inputs, *captured(value.producer)) if v is not None)


__all__ = ["CLOSE", "Report", "Rewrite", "check"]

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

from sardonyx_check.graphs import FLOATS, Graph, Model, Refused, Stored, Value, captured
from sardonyx_check.numbers import INPUT, Array, Numbers, Real, Unlucky, primes
from sardonyx_check.replay import Replay, read
from sardonyx_check.trial import EQUAL, OPEN, UNEQUAL, NotAccepted, Plan, Trial, Unknown

ANSWERS = ALL, ORDERS, TRIALS, REFUSED = (  # best first
    "equal for all values",
    "equal for the orders tried",
    "by trials only",
    "refused",
)
Shapes = dict[str, tuple[int, ...]]
Answer = tuple[str, str]  # and the reason
_SIZES = (2, 3, 5, 7, 11, 13)
_SCALES = (0.1, 1.0, 1.0, 10.0, 100.0)  # of inputs, so that they are on both sides of bounds
_TRIALS = 3
_MORE, _DECISIONS = 12, 3000  # trials with other orders, and how many comparisons make them unnecessary
_MOST_PRIMES = 20  # that are tried until all roots exist
_FOLDED, _EXPRESSION = 4.0, 1.0  # units in the last place by which a constant may differ from what it stands for
_UNIT = {1: 2.0**-23, 10: 2.0**-10, 11: 2.0**-52, 16: 2.0**-7}
_MODES = (  # whether weights may be any, whether the order is random, what equality shows, whether it is a repetition
    (True, True, ALL, False),
    (True, True, ALL, True),
    (True, False, ORDERS, False),
    (False, True, ORDERS, False),
    (False, False, ORDERS, False),
)


def _worst(*answers: Answer) -> Answer:
    return max(answers, key=lambda answer: ANSWERS.index(answer[0]))


@dataclass
class Report:
    """What was found."""

    source: str
    result: str
    outputs: dict[str, Answer] = field(default_factory=dict)
    passes: dict[str, Counter[str]] = field(default_factory=dict)  # answers by pass
    tried: list[Shapes] = field(default_factory=list)  # shapes of inputs
    ranges: dict[str, list[int]] = field(default_factory=dict)  # of integers among them, as the certificate suggests
    constants: int = 0  # that stand for a value
    units: float = 0.0  # in the last place, the largest distance of one from its value

    @property
    def code(self) -> int:
        """The exit code."""
        return {ALL: 0, ORDERS: 0, TRIALS: 1, REFUSED: 3}[_worst((ALL, ""), *self.outputs.values())[0]]


def check(source: str | Path, result: str | Path, certificate: str | Path, *, seed: int | None = None) -> Report:
    """Check a result; raise Refused if the certificate does not belong to it or does not lead to it."""
    content, before, after = read(certificate), Model(source), Model(result)
    for name, model in (("source", before), ("result", after)):
        if content.get(name) != model.digests():
            raise Refused(f"the certificate is about another {name} than {model.path}")
    try:
        replay = Replay(before, after, content)
        replay.compare()
    except RecursionError:
        raise Refused("bodies are nested too deeply") from None
    if seed is None:  # depends on all three files, so that nobody can choose it
        seed = int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:4], "little")
    with np.errstate(all="ignore"):
        return _Check(replay, content.get("inputs") or {}, seed).report(Report(str(source), str(result)))


class _Check:
    def __init__(self, replay: Replay, recipe: dict[str, Any], seed: int) -> None:
        self._replay, self._recipe, self._seed = replay, recipe, seed
        self._inputs = replay.source.proto.graph.input
        self._plans: dict[Graph, Plan] = {}
        self._answers: dict[int, Answer] = {r.number: (ALL, "") for r in replay.rewrites}
        self._compared: Counter[int] = Counter()  # elements, by rewrite
        self._units: dict[tuple[Value, Stored], float] = {}
        self._reason = ""

    def report(self, report: Report) -> Report:
        """Run the trials."""
        report.ranges = self._recipe.get("ranges", {})
        accepted = (shapes for shapes in self._shapes() if self._at(shapes, len(report.tried)))
        report.tried += itertools.islice(accepted, _TRIALS)
        if not report.tried:
            raise Refused(f"no inputs were found that the source accepts: {self._reason}")
        for number in range(len(report.tried), _TRIALS):  # other primes and inputs at the same sizes
            self._at(report.tried[0], number)
        for rewrite in self._replay.rewrites:
            if not self._compared[rewrite.number]:
                self._lower(rewrite.number, TRIALS, "it was never reached, or nothing in it could be compared")
            report.passes.setdefault(rewrite.rule, Counter())[self._answers[rewrite.number][0]] += 1
        report.constants, report.units = len(self._replay.rounded), max(self._units.values(), default=0.0)
        common = [
            self._said(r.number) for r in self._replay.rewrites if r.graph.path
        ]  # any output may depend on bodies
        common += [(TRIALS, f"the value of constant {pair[0].name!r} could not be computed")
                   for pair in self._replay.rounded if pair not in self._units]  # fmt: skip
        for info, value in zip(self._replay.source.proto.graph.output, self._replay.source.main.outputs, strict=True):
            report.outputs[info.name] = _worst(self._answer(value), *common)
        return report

    def _said(self, number: int) -> Answer:
        answer, reason = self._answers[number]
        return answer, f"rewrite {number} ({self._replay.rewrites[number].rule}): {reason}" if reason else ""

    def _answer(self, output: Value) -> Answer:
        """Return the worst answer for the rewrites that an output may depend on, before or after other rewrites."""
        by_old = {old: r.number for r in self._replay.rewrites for old, _ in r.pairs}
        waiting, seen, worst = [output], {output}, (ALL, "")
        while waiting:
            value = waiting.pop()
            worst = _worst(worst, self._said(by_old[value])) if value in by_old else worst
            above = [value.replacement, value.denotes]
            if value.producer is not None:
                above += [*value.producer.inputs, *captured(value.producer)]
            new = {v for v in above if v is not None} - seen
            seen |= new
            waiting += new
        return worst

    def _shapes(self) -> Iterator[Shapes]:
        """Yield shapes of the inputs: small sizes of the dynamic dimensions, then those of the certificate."""
        declared = {i.name: [d.dim_value if d.HasField("dim_value") else d.dim_param or f"{i.name}.{k}"
                             for k, d in enumerate(i.type.tensor_type.shape.dim)] for i in self._inputs}  # fmt: skip
        names = list(dict.fromkeys(d for dims in declared.values() for d in dims if isinstance(d, str)))
        choices = [dict(zip(names, itertools.cycle(_SIZES[k:] + _SIZES[:k]), strict=False)) for k in range(2)]
        for sizes in [*choices, dict.fromkeys(names, 1)]:
            yield {i: tuple(d if isinstance(d, int) else sizes[d] for d in dims) for i, dims in declared.items()}
        for each in self._recipe.get("shapes", ()) if names else ():
            if each.keys() == declared.keys():
                yield {name: tuple(map(int, shape)) for name, shape in each.items()}

    def _feeds(self, shapes: Shapes, n: Numbers, seed: int) -> dict[str, Any]:
        """Return random inputs: any real numbers, integers in the ranges of the certificate, truth values."""
        rng, feeds = np.random.default_rng((self._seed, seed)), dict[str, Any]()
        for info in self._inputs:
            name, type_ = info.name, info.type.tensor_type.elem_type
            if info.type.WhichOneof("value") != "tensor_type" or type_ == onnx.TensorProto.STRING:
                raise Refused(f"input {name!r} is neither numbers nor truth values")
            if type_ in FLOATS:
                f = rng.standard_normal(shapes[name]) * rng.choice(_SCALES, shapes[name])
                feeds[name] = n.random(f, type_, f"input {name} {seed}", INPUT)
            else:
                low, high = self._recipe.get("ranges", {}).get(name, (0, 1))
                whole = rng.integers(int(low), int(high) + 1, shapes[name])
                feeds[name] = whole.astype(helper.tensor_dtype_to_np_dtype(type_))
        return feeds

    def _trial(self, shapes: Shapes, number: int, *, any_weights: bool, opaque: bool) -> Trial:
        for attempt, prime in enumerate(primes(self._seed + 1000 * number)):
            n = Numbers(prime, self._seed * 100 + number, opaque=opaque, strict=attempt < _MOST_PRIMES)
            trial = Trial(self._replay, n, any_weights=any_weights, plans=self._plans)
            try:
                trial.run(self._feeds(shapes, n, number))
                return trial
            except Unlucky:
                continue
        raise AssertionError

    def _orders(self, shapes: Shapes, number: int, *, any_weights: bool, opaque: bool) -> Trial:
        """Run a trial; if it compares few numbers, run more, and return the worst results of all."""
        trial = self._trial(shapes, number, any_weights=any_weights, opaque=opaque)
        for k in range(min(_MORE, _DECISIONS // trial.n.decisions) if trial.n.decisions else 0):
            try:
                more = self._trial(shapes, number + 10000 * (k + 1), any_weights=any_weights, opaque=opaque)
            except NotAccepted:  # a size may depend on a comparison
                continue
            trial.found |= {r: f for r, f in more.found.items() if f[0] > trial.found.get(r, (EQUAL, ""))[0]}
        return trial

    def _at(self, shapes: Shapes, number: int) -> bool:
        """Decide all rewrites at one choice of sizes: for any order first, and in the true order what is left.

        Return whether the source accepts the sizes.
        """
        waiting = {number for number, (answer, _) in self._answers.items() if answer in (ALL, ORDERS)}
        worst: dict[int, tuple[int, str, bool]] = {}
        for index, (any_weights, opaque, claim, again) in enumerate(_MODES):
            if again and not any(worst[r][2] for r in waiting if r in worst):
                continue
            try:
                trial = self._orders(shapes, number * 10 + index + 10, any_weights=any_weights, opaque=opaque)
            except NotAccepted as error:
                self._reason = str(error)
                if not opaque:
                    return False
                continue
            self._measure(trial)
            for rewrite in sorted(waiting):
                found = trial.found.get(rewrite, (EQUAL, "", False))
                if found[0] == EQUAL:
                    waiting.discard(rewrite)
                    self._compared[rewrite] += trial.compared[rewrite]
                    self._lower(rewrite, claim, "")
                else:
                    worst[rewrite] = found
            if all(r in worst and worst[r][0] == OPEN for r in waiting):
                break
        for rewrite in waiting:
            result, reason, _ = worst[rewrite]
            self._lower(rewrite, REFUSED if result == UNEQUAL else TRIALS, reason)
        return True

    def _lower(self, rewrite: int, answer: str, reason: str) -> None:
        self._answers[rewrite] = _worst(self._answers[rewrite], (answer, reason))

    def _measure(self, trial: Trial) -> None:
        """Refuse a stored constant that is not the rounded value that it stands for."""
        for constant, stored in self._replay.rounded:
            assert constant.denotes is not None
            exact = trial.seen.get(constant.denotes)
            if exact is None or isinstance(exact, Unknown) or (constant, stored) in self._units:
                continue
            units = _distance(exact, stored)
            if units > (_FOLDED if constant.denotes.replacement is constant else _EXPRESSION):
                raise Refused(
                    f"constant {constant.name!r} is {units:.3g} units in the last place off what it stands for"
                )
            self._units[constant, stored] = units


def _distance(exact: Real | Array, stored: Stored) -> float:
    """Return by how many units in the last place a stored tensor differs from exact numbers."""
    array = stored.array()
    if exact.shape != array.shape or (exact.type if isinstance(exact, Real) else 0) != stored.type:
        same = not isinstance(exact, Real) and exact.shape == array.shape and exact.dtype == array.dtype
        return 0.0 if same and np.array_equal(np.asarray(exact), array) else float("inf")
    assert isinstance(exact, Real)
    array = array.astype(np.float64)
    unit = _UNIT.get(stored.type, 0.0) * np.maximum(np.abs(exact.f), 2.0**-126)
    equal = (exact.f == array) | (np.isnan(exact.f) & np.isnan(array))
    return float(np.where(equal, 0.0, np.abs(exact.f - array) / unit).max(initial=0.0))

"""Decide every rewrite of a certificate, and from that every output of the model."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from sardonyx_check.graphs import Model, Refused, Stored, Value
from sardonyx_check.numbers import INPUT, UNITS, Array, Numbers, Real, Undecided
from sardonyx_check.operators import FLOATS, Tensor
from sardonyx_check.replay import Replay, read
from sardonyx_check.trial import EQUAL, OPEN, UNEQUAL, NotAccepted, Trial

ALL, ORDERS, TRIALS, REFUSED = "equal for all values", "equal for the orders tried", "by trials only", "refused"
_CODES = {ALL: 0, ORDERS: 0, TRIALS: 1, REFUSED: 3}  # best first
Shapes = dict[str, tuple[int, ...]]
Answer = tuple[str, str]  # and the reason
_SIZES = (2, 3, 5, 7, 11, 13)
_SCALES = (0.1, 1.0, 1.0, 10.0, 100.0)  # of inputs, so that they are on both sides of bounds
_TRIALS = 3
_MORE, _DECISIONS = 12, 3000  # trials with other orders, and how many comparisons make them unnecessary
_FOLDED, _EXPRESSION = 4.0, 1.0  # units in the last place by which a constant may differ from what it stands for


def _worst(*answers: Answer) -> Answer:
    return max(answers, key=lambda answer: list(_CODES).index(answer[0]), default=(ALL, ""))


@dataclass
class Report:
    """What was found."""

    outputs: dict[str, Answer] = field(default_factory=dict)
    passes: dict[str, Counter[str]] = field(default_factory=dict)  # answers by pass
    inputs_tried: list[Shapes] = field(default_factory=list)
    ranges_of_integers: dict[str, list[int]] = field(default_factory=dict)  # as the certificate suggests
    rounded_constants: int = 0  # that stand for a value
    units_in_the_last_place: float = 0.0  # the largest distance of one from its value

    @property
    def code(self) -> int:
        """The exit code."""
        return _CODES[_worst(*self.outputs.values())[0]]


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
        return _Check(replay, content.get("inputs") or {}, seed).report()


class _Check:
    def __init__(self, replay: Replay, recipe: dict[str, Any], seed: int) -> None:
        self._replay, self._recipe, self._seed = replay, recipe, seed
        self._inputs = replay.source.proto.graph.input
        self._plans = {}
        self._answers: list[Answer] = [(ALL, "")] * len(replay.rewrites)
        self._compared: Counter[int] = Counter()  # elements, by rewrite
        self._units: dict[tuple[Value, Stored], float] = {}
        self._reason = ""

    def report(self) -> Report:
        """Run the trials."""
        report, tried = Report(ranges_of_integers=self._recipe.get("ranges", {})), list[Shapes]()
        tried += itertools.islice((shapes for shapes in self._shapes() if self._decide(shapes, len(tried))), _TRIALS)
        if not tried:
            raise Refused(f"no inputs were found that the source accepts: {self._reason}")
        for number in range(len(tried), _TRIALS):  # other primes and inputs at the same sizes
            self._decide(tried[0], number)
        common: list[Answer] = []  # any output may depend on bodies
        for rewrite, (rule, graph) in enumerate(self._replay.rewrites):
            if not self._compared[rewrite]:
                self._lower(rewrite, TRIALS, "it was never reached, or nothing in it could be compared")
            report.passes.setdefault(rule, Counter())[self._answers[rewrite][0]] += 1
            common += [self._answers[rewrite]] if graph.path else []
        report.inputs_tried, report.rounded_constants = tried, len(self._replay.rounded)
        report.units_in_the_last_place = max(self._units.values(), default=0.0)
        common += [(TRIALS, f"the value of constant {pair[0].name!r} could not be computed")
                   for pair in self._replay.rounded if pair not in self._units]  # fmt: skip
        for info, value in zip(self._replay.source.proto.graph.output, self._replay.source.main.outputs, strict=True):
            report.outputs[info.name] = _worst(self._answer(value), *common)
        return report

    def _answer(self, output: Value) -> Answer:
        """Return the worst answer for the rewrites that an output may depend on, before or after other rewrites."""
        by_old = {old: rewrite for rewrite, old, _ in self._replay.source.main.pairs}
        waiting, seen = [output], {output}
        while waiting:
            value = waiting.pop()
            read = (*value.producer.inputs, *value.producer.reads()) if value.producer is not None else ()
            new = {v for v in (value.replacement, value.denotes, *read) if v is not None and v not in seen}
            waiting += new
            seen |= new
        return _worst(*(self._answers[by_old[value]] for value in seen if value in by_old))

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

    def _feeds(self, shapes: Shapes, n: Numbers) -> list[Tensor]:
        """Return random inputs: any real numbers, integers in the ranges of the certificate, truth values."""
        rng, feeds = np.random.default_rng((n.seed, 1)), list[Tensor]()
        for info in self._inputs:
            name, type_ = info.name, info.type.tensor_type.elem_type
            if info.type.WhichOneof("value") != "tensor_type" or type_ == onnx.TensorProto.STRING:
                raise Refused(f"input {name!r} is neither numbers nor truth values")
            if type_ in FLOATS:
                f = rng.standard_normal(shapes[name]) * rng.choice(_SCALES, shapes[name])
                feeds.append(n.random(f, type_, f"input {name}", INPUT))
            else:
                low, high = self._recipe.get("ranges", {}).get(name, (0, 1))
                whole = rng.integers(int(low), int(high) + 1, shapes[name])
                feeds.append(whole.astype(helper.tensor_dtype_to_np_dtype(type_)))
        return feeds

    def _trial(self, shapes: Shapes, number: int, *, free: bool) -> Trial:
        n = Numbers(self._seed * 1000 + number, free=free)
        trial = Trial(self._replay, n, self._plans)
        trial.run(self._replay.source.main, self._feeds(shapes, n), {})
        self._measure(trial)
        return trial

    def _orders(self, shapes: Shapes, number: int, *, free: bool) -> Trial:
        """Run a trial; if it compares few numbers, run more, and return the worst results of all."""
        trial = self._trial(shapes, number, free=free)
        for k in range(min(_MORE, _DECISIONS // trial.n.decisions) if trial.n.decisions else 0):
            try:
                more = self._trial(shapes, number + 10 * (k + 1), free=free)
            except NotAccepted:  # a size may depend on a comparison
                continue
            trial.found |= {r: max(found, trial.found.get(r, found)) for r, found in more.found.items()}
        return trial

    def _decide(self, shapes: Shapes, number: int) -> bool:
        """Decide all rewrites at one choice of sizes; return whether the source accepts them.

        Free numbers are tried first, twice in case a divisor is zero modulo the prime by chance. In what is left, the
        doubles decide the order, and weights are as stored.
        """
        waiting = {rewrite for rewrite, (answer, _) in enumerate(self._answers) if answer in (ALL, ORDERS)}
        found: dict[int, tuple[int, str]] = {}
        for attempt, claim in enumerate((ALL, ALL, ORDERS)):
            try:
                trial = self._orders(shapes, 200 * number + attempt, free=claim == ALL)
            except NotAccepted as error:
                self._reason = str(error)
                if claim == ORDERS:
                    return False
                continue
            found = trial.found
            equal = {rewrite for rewrite in waiting if found.get(rewrite, (EQUAL, ""))[0] == EQUAL}
            for rewrite in equal:
                self._compared[rewrite] += trial.compared[rewrite]
                self._lower(rewrite, claim, "")
            waiting -= equal
            if all(found[rewrite][0] == OPEN for rewrite in waiting):
                break
        for rewrite in waiting:
            self._lower(rewrite, REFUSED if found[rewrite][0] == UNEQUAL else TRIALS, found[rewrite][1])
        return True

    def _lower(self, rewrite: int, answer: str, reason: str) -> None:
        text = f"rewrite {rewrite} ({self._replay.rewrites[rewrite][0]}): {reason}" if reason else ""
        self._answers[rewrite] = _worst(self._answers[rewrite], (answer, text))

    def _measure(self, trial: Trial) -> None:
        """Refuse a stored constant that is not the rounded value that it stands for."""
        for constant, stored in self._replay.rounded:
            assert constant.denotes is not None
            exact = trial.seen.get(constant.denotes)
            if exact is None or isinstance(exact, Undecided) or (constant, stored) in self._units:
                continue
            units = _distance(exact, stored)
            if not units <= (_FOLDED if constant.denotes.replacement is constant else _EXPRESSION):  # it may be NaN
                raise Refused(f"constant {constant.name!r} is {units:.3g} units in the last place off its value")
            self._units[constant, stored] = units


def _distance(exact: Real | Array, stored: Stored) -> float:
    """Return by how many units in the last place a stored tensor differs from exact numbers."""
    array = stored.array()
    if not isinstance(exact, Real):
        return 0.0 if exact.dtype == array.dtype and np.array_equal(exact, array) else math.inf
    if exact.shape != array.shape or exact.type != stored.type:
        return math.inf
    array = array.astype(np.float64)
    equal = exact.f == array
    if equal.all():
        return 0.0
    unit = UNITS.get(stored.type, 0.0) * np.maximum(np.abs(exact.f), 2.0**-126)
    equal |= np.isnan(exact.f) & np.isnan(array)
    return float(np.where(equal, 0.0, np.abs(exact.f - array) / unit).max(initial=0.0))

"""Runs the nodes before and after one rewrite on border values of many kinds, and compares them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import onnx

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import FILLS, MOVES_DATA, READS_SHAPE
from sardonyx.ir.rules import Rule
from sardonyx.ir.transaction import Substitution
from sardonyx.records.run import Accuracy, RewriteChecks, RolledBack
from sardonyx.runtime import Array, Value
from sardonyx.runtime.remote import RemoteSession, RuntimeCrash, RuntimeTimeout
from sardonyx.verification import noise
from sardonyx.verification.border_values import Generator, Style, Way
from sardonyx.verification.judge import Judge, Noise
from sardonyx.verification.rewrite_models import Excerpt
from sardonyx.verification.rounding import in_double, widened, without_rounding
from sardonyx.verification.tolerance import is_float

_MOST_BYTES = 1 << 27  # of constants in an excerpt
_MOST_WAYS = 60  # of generating a border until the nodes before the rewrite accept it
_MOST_EDGES = 4  # dims that are empty alone
_TOGETHER = 1 << 17  # elements of borders that are sent to the worker together
_RUN_SECONDS = 5.0  # for what is sent together
_NOISE_SAMPLES = 4
_SECONDS = 0.3  # for one excerpt, once it has been compared on the first borders
# Operators that only choose among elements or move them, and those of them that choose by comparing.
_MOVING = MOVES_DATA | FILLS | READS_SHAPE | {"Concat", "Where"}
_CHOOSING = _MOVING | {"Clip", "Relu", "Max", "Min"}


class State(Enum):
    """What came of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    IMPOSSIBLE = "impossible"  # the nodes before the rewrite do not run on any border
    LEFT_OUT = "left out"  # there was no time


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check, and why."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Trial:
    """One border, and what it was made of."""

    style: Style
    way: Way
    feeds: Mapping[str, Array]

    @property
    def size(self) -> int:
        return sum(value.size for value in self.feeds.values())

    @property
    def text(self) -> str:
        sizes = ", ".join(f"{dim}={size}" for dim, size in self.way.sizes.items())
        return f"{self.style.value} values" + (f", {sizes}" if sizes else "")


class Check:
    """Both sides of one excerpt, run on values of many kinds."""

    def __init__(self, excerpt: Excerpt, accuracy: Accuracy, rounds: int) -> None:
        """`rounds` says how often every kind is generated."""
        self._excerpt, self._rounds = excerpt, rounds
        self._accuracy = Accuracy.EXACT if excerpt.operators <= _MOVING else accuracy  # nothing there rounds
        constants = [*excerpt.before.constants.values(), *excerpt.after.constants.values()]
        self._generator = Generator(excerpt.border, constants, excerpt.operators)
        self._sides: dict[str, _Side] = {}

    def outcome(self) -> Outcome:
        """What comes of it."""
        if self._excerpt.is_random:
            return Outcome(State.IMPOSSIBLE, "its results are random")
        if self._excerpt.before.nbytes + self._excerpt.after.nbytes > _MOST_BYTES:
            return Outcome(State.IMPOSSIBLE, "its weights are too large")
        way, reason = self._accepted()
        try:
            return Outcome(State.IMPOSSIBLE, reason) if way is None else self._on_values(way)
        finally:
            for side in self._sides.values():
                side.close()

    def _accepted(self) -> tuple[Way | None, str]:
        """The first way to generate the border that the nodes before the rewrite accept."""
        reason, last = "no values fit", None
        for way, _ in zip(self._generator.ways(), range(_MOST_WAYS), strict=False):
            feeds = self._generator.generate(way, Style.NORMAL, 0)
            if feeds is None:
                continue
            if way.dtype is not last:
                self._open("before", self._excerpt.before.filled(self._generator.types(way)))
                last = way.dtype
            (answer,) = self._sides["before"].run_each([feeds])
            if not isinstance(answer, RuntimeFailure):
                return way, ""
            reason = answer.message
        return None, reason

    def _on_values(self, way: Way) -> Outcome:
        self._open("after", self._excerpt.after.filled(self._generator.types(way)))
        began = time.perf_counter()
        for trials in _together(self._trials(way)):
            for trial, line in self._differences(trials):
                return Outcome(State.FAILS, f"{line} ({trial.text})")
            if time.perf_counter() - began > _SECONDS:
                break
        return Outcome(State.HOLDS)

    def _trials(self, way: Way) -> Iterator[_Trial]:
        for style, one, seed in self._plans(way):
            feeds = self._generator.generate(one, style, seed)
            if feeds is not None:
                yield _Trial(style, one, feeds)

    def _plans(self, way: Way) -> Iterator[tuple[Style, Way, int]]:
        """Style, sizes and seed of every border, the most telling first."""
        exact = self._accuracy is Accuracy.EXACT
        hard = (Style.SPECIAL,) if exact else (Style.WIDE, Style.HIDING, Style.FLAT)
        if not exact and self._excerpt.operators <= _CHOOSING:
            hard = (Style.EXTREME,)
        others = [replace(way, sizes=sizes) for sizes in self._generator.other_sizes(way.sizes)]
        edges = [replace(way, sizes=sizes) for sizes in self._generator.edge_sizes(way.sizes, _MOST_EDGES)]
        for seed in range(0, 100 * self._rounds, 100):
            yield Style.NORMAL, way, seed
            for style in hard:
                yield style, way, seed + 1
            for edge in edges:
                yield hard[0], edge, seed + 2
                yield Style.NORMAL, edge, seed + 3
            for other in others or [way]:
                yield Style.NORMAL, other, seed + 4
                for style in hard[:2]:
                    yield style, other, seed + 5

    def _differences(self, trials: Sequence[_Trial]) -> Iterator[tuple[_Trial, str]]:
        """What differs on borders that the nodes before the rewrite accept; the others say nothing."""
        answers = self._sides["before"].run_each([trial.feeds for trial in trials])
        accepted = [(trial, a) for trial, a in zip(trials, answers, strict=True) if not isinstance(a, RuntimeFailure)]
        results = self._sides["after"].run_each([trial.feeds for trial, _ in accepted])
        for (trial, expected), result in zip(accepted, results, strict=True):
            line = self._compare(trial, expected[: self._excerpt.results], result)
            if line is not None:
                yield trial, line

    def _compare(self, trial: _Trial, expected: list[Value], results: list[Value] | RuntimeFailure) -> str | None:
        if isinstance(results, RuntimeFailure):
            is_empty = 0 in trial.way.sizes.values() and not isinstance(results, RuntimeCrash)
            if is_empty or isinstance(results, RuntimeTimeout):  # some kernels reject an empty tensor
                return None
            return f"the new nodes do not run where the old ones do: {results.message}"
        if self._accuracy is Accuracy.EXACT:
            if "Where" in self._excerpt.operators:  # the runtime's own forgets the sign of some zeros
                results = [_with_zeros_of(a, b) for a, b in zip(expected, results, strict=True)]
            return _first_different(expected, results)
        if trial.style is Style.HIDING:  # a row of which -inf hides everything is NaN: any answer will do
            results = [_with_nan_of(a, b) for a, b in zip(expected, results, strict=True)]
        judge = Judge([f"{i}" for i in range(len(expected))], self._accuracy, frozenset())
        lines = judge.compare(expected, results, lambda: self._noise(trial, expected, results))
        return lines[0] if lines else None

    def _open(self, name: str, model: onnx.ModelProto) -> None:
        if name in self._sides:
            self._sides[name].close()
        self._sides[name] = _Side(model)

    def _noise(self, trial: _Trial, expected: Sequence[Value], results: Sequence[Value]) -> Noise | None:
        """What rounding alone makes of the results of the nodes before the rewrite."""
        if "noise" not in self._sides:
            types = self._generator.types(trial.way)
            before = self._excerpt.before.filled(types)
            copy = noise.disturbed(io.from_proto(before))
            if copy is None:
                return None
            self._open("noise", io.to_proto(copy))
            self._open("before in double", in_double(before))
            self._open("after in double", in_double(self._excerpt.after.filled(types)))
        first = self._sides["noise"].outputs({**trial.feeds, **noise.draw(1)})
        if first is None:
            return None

        def disturb(number: int) -> Sequence[Value]:
            if number > 0:
                return self._sides["noise"].outputs({**trial.feeds, **noise.draw(number)}) or first
            wide = {name: widened(value) for name, value in trial.feeds.items()}
            exact = [self._sides[f"{side} in double"].outputs(wide) for side in ("before", "after")]
            sides = zip(expected, exact[0] or expected, results, exact[1] or results, strict=False)
            return [without_rounding(*values) for values in sides]

        return Noise(expected, disturb, most=_NOISE_SAMPLES)


def _together(trials: Iterator[_Trial]) -> Iterator[list[_Trial]]:
    """Trials in lists that are small enough to be run together."""
    chunk: list[_Trial] = []
    for trial in trials:
        if chunk and sum(each.size for each in chunk) + trial.size > _TOGETHER:
            yield chunk
            chunk = []
        chunk.append(trial)
    if chunk:
        yield chunk


class _Side:
    """A model that is opened when it is first run, and takes of the values those it has inputs for."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._inputs = {value.name for value in model.graph.input}
        self._session: RemoteSession | None = None

    def run_each(self, many: Sequence[Mapping[str, Value]]) -> list[list[Value] | RuntimeFailure]:
        """Outputs or a failure for each; a model that does not load fails for all of them."""
        if not many:
            return []
        if self._session is None:
            try:
                self._session = RemoteSession(self._model.SerializeToString(), threads=1, seconds=_RUN_SECONDS)
            except RuntimeFailure as failure:
                return [failure] * len(many)
        taken = [{name: value for name, value in feeds.items() if name in self._inputs} for feeds in many]
        return self._session.run_each(taken)

    def outputs(self, feeds: Mapping[str, Value]) -> list[Value] | None:
        """The outputs, or None."""
        (answer,) = self.run_each([feeds])
        return None if isinstance(answer, RuntimeFailure) else answer

    def close(self) -> None:
        """Let go of the model."""
        if self._session is not None:
            self._session.close()


def _first_different(expected: Sequence[Value], results: Sequence[Value]) -> str | None:
    """What is not the same to the bit, the sign of zero included; NaN is NaN whatever its bits."""
    lines = (_different(a, b) for a, b in zip(expected, results, strict=True))
    return next((line for line in lines if line is not None), None)


def _different(a: Value, b: Value) -> str | None:
    if isinstance(a, list) and isinstance(b, list):
        return _first_different(a, b) if len(a) == len(b) else f"a sequence of {len(b)} instead of {len(a)}"
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return None if a is None and b is None else "a value of another kind"
    if a.dtype != b.dtype:
        return f"type {b.dtype} instead of {a.dtype}"
    if a.shape != b.shape:
        return f"shape {list(b.shape)} instead of {list(a.shape)}"
    wrong = np.asarray(a != b)
    if is_float(a.dtype):
        x, y = a.astype(np.float64), b.astype(np.float64)
        wrong = (wrong | (np.signbit(x) != np.signbit(y))) & ~(np.isnan(x) & np.isnan(y))
    elif a.dtype.kind == "c":
        wrong = wrong & ~(np.isnan(a) & np.isnan(b))
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape) if wrong.shape else ()
    return f"{int(wrong.sum())} of {wrong.size} elements differ, such as {b[first]} for {a[first]}"


def _with_zeros_of(reference: Value, result: Value) -> Value:
    """The result with zeros as positive as those of the reference."""
    if not isinstance(reference, np.ndarray) or not isinstance(result, np.ndarray):
        return result
    if not is_float(reference.dtype) or reference.shape != result.shape:
        return result
    forgotten = (reference == 0) & (result == 0) & ~np.signbit(reference.astype(np.float64))
    return np.where(forgotten, reference, result)


def _with_nan_of(reference: Value, result: Value) -> Value:
    if not isinstance(reference, np.ndarray) or not isinstance(result, np.ndarray):
        return result
    if not is_float(reference.dtype) or reference.shape != result.shape:
        return result
    undefined = np.isnan(reference.astype(np.float64))
    return np.where(undefined, np.asarray(np.nan, result.dtype), result)


# Checks single rewrites where they happen: the nodes before and after, on border values of their own.
#
# A rewrite is right if both sides agree whatever the border holds, whether or not the model's inputs can bring it
# about.
# This also covers bodies that no trial enters. Rewrites of one structure are checked once. Where the two sides
# disagree,
# the rewrite may rely on what the producers of the border compute (indices that count up, a mask of zeros and ones):
# the
# border is moved up past them, and only a rewrite that disagrees there too is wrong. The reasons are in
# `docs/decisions/0020-rewrites-checked-where-they-happen.md`.

_MOST_NODES = 60  # of an excerpt
_MOST_LEVELS = 12  # that the border is moved up
_OF_ONE_PASS = 0.5  # of the time: the first passes must not leave nothing to the last
_SUSPECTED = 4  # rounds of values where the rewrite failed on a narrower border


@dataclass(slots=True)
class Findings:
    """What was found out about the rewrites of one candidate."""

    rewrites: int = 0
    shapes: set[bytes] = field(default_factory=set[bytes])
    states: Counter[State] = field(default_factory=Counter[State])
    failing: list[RolledBack] = field(default_factory=list[RolledBack])
    holding: set[str] = field(default_factory=set[str])  # passes with a rewrite that holds

    def record(self) -> RewriteChecks | None:
        """The numbers for the verdict; None where there was nothing to check."""
        counts = (self.states[state] for state in (State.HOLDS, State.IMPOSSIBLE, State.LEFT_OUT))
        return RewriteChecks(self.rewrites, len(self.shapes), *counts) if self.rewrites else None


class LocalChecks:
    """Checks the rewrites of any number of candidates; what was checked once is remembered."""

    def __init__(self, seconds: float) -> None:
        """Spend about so many seconds in all."""
        self._most = seconds
        self.seconds = 0.0  # spent so far
        self._spent: dict[str, float] = {}  # by pass
        self._late = False
        self._known: dict[bytes, Outcome] = {}
        self.findings = Findings()

    def begin(self) -> None:
        """A new candidate is being made."""
        self.findings = Findings()

    def observe(self, facts: Facts, rule: Rule, root: str, rewrite: Substitution) -> None:
        """Check one rewrite, before it is carried out."""
        if not rewrite.pairs:
            return
        began = time.perf_counter()
        excerpt = Excerpt.narrowest(facts, rewrite)
        found = self.findings
        found.rewrites += 1
        found.shapes.add(excerpt.signature())
        spent = self._spent.get(rule.name, 0.0)
        self._late = self.seconds > self._most or spent > self._most * _OF_ONE_PASS
        outcome = self._checked(excerpt, rule.accuracy)
        found.states[outcome.state] += 1
        if outcome.state is State.HOLDS:
            found.holding.add(rule.name)
        if outcome.state is State.FAILS:
            owner = origins.owner(rewrite.match.root)
            found.failing.append(RolledBack(rule.name, root, owner, outcome.reason))
        seconds = time.perf_counter() - began
        self.seconds += seconds
        self._spent[rule.name] = spent + seconds

    def _checked(self, excerpt: Excerpt, accuracy: Accuracy) -> Outcome:
        """The outcome at the narrowest border where the rewrite holds; otherwise that at the widest that runs.

        Where the border is assumed to hold certain sizes, the rewrite must hold at the widest border as well: what
        the shape inference says is then computed.
        """
        outcome = self._outcome(excerpt, accuracy)
        if outcome.state is State.HOLDS and excerpt.assumes_sizes:
            outcome = self._outcome(excerpt.widest(_MOST_NODES), accuracy)
            return Outcome(State.HOLDS) if outcome.state is State.IMPOSSIBLE else outcome
        rounds = 1
        for wider in itertools.islice(excerpt.widened(_MOST_NODES), _MOST_LEVELS):
            if outcome.state in (State.HOLDS, State.LEFT_OUT):
                break
            rounds = _SUSPECTED if outcome.state is State.FAILS else rounds
            further = self._outcome(wider, accuracy, rounds)
            outcome = outcome if further.state is State.IMPOSSIBLE else further
        return outcome

    def _outcome(self, excerpt: Excerpt, accuracy: Accuracy, rounds: int = 1) -> Outcome:
        key = f"{accuracy.value} {rounds} ".encode() + excerpt.signature()
        if key not in self._known:
            self._known[key] = Outcome(State.LEFT_OUT) if self._late else Check(excerpt, accuracy, rounds).outcome()
        return self._known[key]

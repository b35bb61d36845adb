"""Check single rewrites where they happen: are the nodes before and after the same function?

Exact arithmetic decides most rewrites (`exact_check`). What it leaves open is run: both sides on the same border
values, and the results are compared. A rewrite is right if both sides agree for all border values, whether or not
inputs of the model can produce them; this also covers bodies that no trial of the whole model enters. Rewrites of the
same structure are checked once. If the two sides disagree, the rewrite may rely on what the producers of the border
compute (indices that count up, a mask of zeros and ones): the border is then moved up past them, and only a rewrite
that disagrees there too is wrong. The reasons are in `docs/decisions/0020-rewrites-checked-where-they-happen.md`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import numpy as np
import onnx
from msgspec import Struct, field
from msgspec.structs import replace
from onnx_ir import DataType

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import origins
from sardonyx.ir.exact.evaluate import doubles
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import FILLS, MOVES_DATA, READS_SHAPE
from sardonyx.ir.rules import Rule
from sardonyx.ir.support import WHERE_SIGN
from sardonyx.ir.transaction import Substitution
from sardonyx.records.run import Accuracy, RewriteChecks, RewriteClaims, RolledBack
from sardonyx.runtime import Array, Value
from sardonyx.runtime.library import one_line
from sardonyx.runtime.remote import RemoteSession, RuntimeCrash, RuntimeTimeout
from sardonyx.verification.border_values import Generator, Style, Way
from sardonyx.verification.double_precision import DoublePrecision
from sardonyx.verification.exact_check import EQUAL, Claim, Decision, decide
from sardonyx.verification.output_comparison import OutputComparer
from sardonyx.verification.rewrite_models import Excerpt, Reproducers
from sardonyx.verification.subject import Subject
from sardonyx.verification.tolerance import is_float

_MAX_CONSTANT_BYTES = 1 << 27  # constants in an excerpt
_CHUNK_ELEMENTS = 1 << 17  # border elements that are sent to the worker together
_RUN_SECONDS = 60.0  # time limit for one chunk, which takes milliseconds
_MOST_ELEMENTS = 1 << 19  # of the borders of one excerpt, after the first chunk
# Operators that only move elements or select among them, and with those that select by comparing.
_MOVING = MOVES_DATA | FILLS | READS_SHAPE | {"Concat", "Where"}
_CHOOSING = _MOVING | {"Clip", "Relu", "Max", "Min"}
_ROUNDED_CONSTANTS = 2.0**-20  # of the largest element, by which results in double precision may differ
_MOST_NODES = 60  # in an excerpt
_MOST_LEVELS = 12  # by which the border is moved up
_TRIED_LEVELS = (0, 1, 3, 7)  # before the last, where exact arithmetic is tried again
_NOT_RUN = "the new nodes do not run where the old ones do"
_SUSPECT_ROUNDS = 4  # rounds of values if the rewrite failed on a narrower border
_COUNTED = {Claim.ALL_VALUES: "all_values", Claim.ORDERS_TRIED: "orders_tried", None: "by_trials"}  # fields of a record


class State(Enum):
    """The result of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    IMPOSSIBLE = "impossible"  # the nodes before the rewrite do not run on any border
    ERROR = "error"  # the check itself failed


class Outcome(Struct, frozen=True):
    """The result of a check, and the reason."""

    state: State
    reason: str = ""
    claim: Claim | None = None  # of exact arithmetic; None if it holds by trials only
    every_size: bool = False  # the claim is about every size, not only about those tried
    feeds: Mapping[str, Array] = {}  # values of the border on which it fails
    types: Mapping[str, DataType] = {}  # of the border
    is_smaller: bool = False  # decided with smaller sizes in place of fixed ones
    undecided: str = ""  # why exact arithmetic makes no claim

    @property
    def counted(self) -> str:
        """The field of `RewriteClaims` that counts it; "" for a rewrite that is undone."""
        if self.state is State.HOLDS:
            return _COUNTED[self.claim]
        return {State.IMPOSSIBLE: "not_runnable", State.ERROR: "failed"}.get(self.state, "")


class _Trial(Struct, frozen=True):
    """Values of one border, and how they were generated."""

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
    """Runs both sides of one excerpt on values of many styles and compares them."""

    def __init__(self, excerpt: Excerpt, accuracy: Accuracy, rounds: int) -> None:
        """Check one excerpt; every style of values is generated `rounds` times."""
        self._excerpt, self._rounds = excerpt, rounds
        self._accuracy = Accuracy.EXACT if excerpt.operators <= _MOVING else accuracy  # nothing there rounds
        constants = [*excerpt.before.constants.values(), *excerpt.after.constants.values()]
        self._generator = Generator(excerpt.border, constants, excerpt.operators)
        self._sides: dict[str, _Side] = {}

    def outcome(self) -> Outcome:
        """Run the check."""
        if self._excerpt.obstacle:
            return Outcome(State.IMPOSSIBLE, self._excerpt.obstacle)
        if self._excerpt.before.nbytes + self._excerpt.after.nbytes > _MAX_CONSTANT_BYTES:
            return Outcome(State.IMPOSSIBLE, "its weights are too large")
        way, reason = self._accepted()
        try:
            return Outcome(State.IMPOSSIBLE, reason) if way is None else self._on_values(way)
        finally:
            for side in self._sides.values():
                side.close()

    def _accepted(self) -> tuple[Way | None, str]:
        """Return the first way of generating values that the nodes before the rewrite accept, or why there is none."""
        reason, last = "no values fit", None
        for way in self._generator.ways():
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
        made = ((*plan, self._generator.generate(plan[1], plan[0], plan[2])) for plan in self._plans(way))
        elements = 0
        for trials in _chunks(_Trial(style, sized, feeds) for style, sized, _, feeds in made if feeds is not None):
            elements += sum(trial.size for trial in trials)
            for trial, line in self._differences(trials):
                types = self._generator.types(trial.way)
                return Outcome(State.FAILS, f"{line} ({trial.text})", feeds=trial.feeds, types=types)
            if elements > _MOST_ELEMENTS:
                break
        return Outcome(State.HOLDS)

    def _plans(self, way: Way) -> Iterator[tuple[Style, Way, int]]:
        """Yield the style, sizes and seed of every border, the most informative first."""
        exact = self._accuracy is Accuracy.EXACT
        hard = (Style.SPECIAL,) if exact else (Style.WIDE, Style.HIDING, Style.FLAT)
        if not exact and self._excerpt.operators <= _CHOOSING:
            hard = (Style.EXTREME,)
        others = [replace(way, sizes=sizes) for sizes in self._generator.other_sizes(way.sizes)]
        edges = [replace(way, sizes=sizes) for sizes in self._generator.edge_sizes(way.sizes)]
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
        """Yield the differences on borders that the nodes before the rewrite accept; the others are skipped."""
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
            return f"{_NOT_RUN}: {results.message}"
        if self._accuracy is Accuracy.EXACT:
            if WHERE_SIGN.operators & self._excerpt.operators:
                results = [_with_reference(a, b, signed=True) for a, b in zip(expected, results, strict=True)]
            return _first_different(expected, results)
        if trial.style is Style.HIDING:  # a row that -inf masks entirely is NaN: any result is allowed
            results = list(map(_with_reference, expected, results))
        comparer = OutputComparer([f"{i}" for i in range(len(expected))], self._accuracy, frozenset())
        lines = comparer.compare(expected, results)
        return lines[0] if lines and not self._agree_in_double(trial, expected, results) else None

    def _open(self, name: str, model: onnx.ModelProto) -> None:
        if name in self._sides:
            self._sides[name].close()
        self._sides[name] = _Side(model)

    def _agree_in_double(self, trial: _Trial, expected: Sequence[Value], results: Sequence[Value]) -> bool:
        """Return whether the sides agree in double precision; what is finite in one must be finite in the other."""
        if not all(map(_same_finite, expected, results)):
            return False
        before, after = (self._sides[side].in_double(trial.feeds) for side in ("before", "after"))
        if before is None or after is None:
            return False
        before = before[: len(results)]
        if trial.style is Style.HIDING:  # rows without a key are undefined in exact arithmetic
            before = list(map(_with_reference, after, before))
        return all(itertools.starmap(_near_in_double, zip(before, after, strict=True)))


def _same_finite(a: Value, b: Value) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape or not is_float(a.dtype):
        return a is None and b is None
    return np.array_equal(np.isfinite(a.astype(np.float64)), np.isfinite(b.astype(np.float64)))


def _near_in_double(a: Value, b: Value) -> bool:
    """Return whether results differ by no more than the rounding of constants to single precision does."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or not is_float(a.dtype):
        return False
    a, b = a.astype(np.float64), b.astype(np.float64)  # what only moves constants is not widened
    scale = float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
    return np.allclose(a, b, rtol=0, atol=_ROUNDED_CONSTANTS * scale, equal_nan=True)


def _chunks(trials: Iterator[_Trial]) -> Iterator[list[_Trial]]:
    """Yield lists of trials that are small enough to be run together."""
    chunk: list[_Trial] = []
    for trial in trials:
        if chunk and sum(earlier.size for earlier in chunk) + trial.size > _CHUNK_ELEMENTS:
            yield chunk
            chunk = []
        chunk.append(trial)
    if chunk:
        yield chunk


class _Side:
    """A model that is opened when it is first run, and ignores values that it has no input for."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model, self._inputs = model, {value.name for value in model.graph.input}
        self._subject = Subject(model)
        self._double = DoublePrecision(self._subject.model, constants="widen", threads=1)
        self._session: RemoteSession | None = None

    def _used(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in feeds.items() if name in self._inputs}

    def run_each(self, many: Sequence[Mapping[str, Value]]) -> list[list[Value] | RuntimeFailure]:
        """Return the outputs or a failure for each; a model that does not load fails for all of them."""
        try:
            self._session = self._session or self._subject.session(threads=1, seconds=_RUN_SECONDS)
        except RuntimeFailure as failure:
            return [failure] * len(many)
        return self._session.run_each([self._used(feeds) for feeds in many])

    def in_double(self, feeds: Mapping[str, Value]) -> list[Value] | None:
        """Return the outputs in double precision, without the runtime if it has no kernel for it."""
        return self._double.run(self._used(feeds)) or doubles(self._model, self._used(feeds))

    def close(self) -> None:
        """Close the model."""
        self._double.close()
        if self._session is not None:
            self._session.close()


def _first_different(expected: Sequence[Value], results: Sequence[Value]) -> str | None:
    """Return the first difference in bits, the sign of zero included; all NaN are equal. None if there is none."""
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


def _with_reference(reference: Value, result: Value, *, signed: bool = False) -> Value:
    """Return the result with the elements of the reference that are NaN, or `signed`, those that are 0 in both."""
    if not isinstance(reference, np.ndarray) or not isinstance(result, np.ndarray):
        return result
    if not is_float(reference.dtype) or reference.shape != result.shape:
        return result
    one, other = reference.astype(np.float64), result.astype(np.float64)
    return np.where((one == 0) & (other == 0) & ~np.signbit(one) if signed else np.isnan(one), reference, result)


def _why(decision: Decision) -> str:
    """Return why exact arithmetic does not find a rewrite to be equal, in words that do not depend on sizes."""
    if decision.claim is Claim.UNDECIDED:
        return decision.reason
    equal = decision.claim in EQUAL
    return "the results differ in bits" if equal else "the results differ, as far as is known of the values"


class Findings(Struct):
    """The results for the rewrites of one candidate."""

    rewrites: int = 0
    shapes: set[bytes] = field(default_factory=set[bytes])
    states: Counter[State] = field(default_factory=Counter[State])
    passes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])  # fields of `RewriteClaims`
    rounding_units: float = 0.0
    failing: list[RolledBack] = field(default_factory=list[RolledBack])
    holding: set[str] = field(default_factory=set[str])  # passes with a rewrite that holds
    undecided: Counter[str] = field(default_factory=Counter[str])  # by pass and reason
    error: str = ""  # why the first check failed that did

    @property
    def proven(self) -> bool:
        """Whether exact arithmetic found every rewrite to be equal."""
        return self.rewrites == sum(self._total[_COUNTED[claim]] for claim in EQUAL)

    @property
    def proven_for_all_values(self) -> bool:
        """Whether exact arithmetic found every rewrite to be equal for all values."""
        return self.rewrites == self._total["all_values"]

    @property
    def _total(self) -> Counter[str]:
        return sum(self.passes.values(), Counter[str]())

    def record(self) -> RewriteChecks | None:
        """Return the numbers for the verdict, or None if there was no rewrite."""
        if not self.rewrites:
            return None
        return RewriteChecks(
            **self._total,
            distinct=len(self.shapes),
            rounding_units=self.rounding_units if math.isfinite(self.rounding_units) else None,
            error=self.error,
            undecided=dict(self.undecided.most_common()),
            passes={name: RewriteClaims(**counts) for name, counts in self.passes.items()},
        )


class LocalChecks:
    """Checks the rewrites of any number of candidates; outcomes are cached."""

    def __init__(self, reproducers: Reproducers | None = None) -> None:
        """Prepare the checks; `reproducers` writes wrong rewrites to files."""
        self.seconds = 0.0
        self._reproducers = reproducers
        self._outcomes: dict[bytes, Outcome] = {}
        self._decisions: dict[bytes, Decision] = {}
        self._decided_last: Excerpt | None = None  # its decision is the one of its signature
        self.findings = Findings()

    def begin(self) -> None:
        """Start a new candidate."""
        self.findings = Findings()

    def observe(self, facts: Facts, rule: Rule, root: str, rewrite: Substitution) -> None:
        """Check one rewrite, before it is carried out."""
        if not rewrite.pairs:
            return
        began = time.perf_counter()
        findings = self.findings
        findings.rewrites += 1
        counts = findings.passes.setdefault(rule.name, Counter[str]())
        counts["rewrites"] += 1
        try:
            excerpt = Excerpt.narrowest(facts, rewrite)
            findings.shapes.add(excerpt.signature)
            outcome = self._checked(excerpt, rule)
            units = max(excerpt.rounding_units, self._decisions[excerpt.signature].units)
            counts["rounded"] += units > 0
            findings.rounding_units = max(findings.rounding_units, units)
        except Exception as error:  # of the check, not of the rewrite: the model as a whole is verified in any case
            outcome = Outcome(State.ERROR, f"{rule.name}: {type(error).__name__}: {one_line(error)}")
            findings.error = findings.error or outcome.reason
        findings.states[outcome.state] += 1
        if outcome.counted:
            counts[outcome.counted] += 1
        if outcome.undecided:
            findings.undecided[f"{rule.name}: {outcome.undecided}"] += 1
        if outcome.state is State.HOLDS:
            counts["for_every_size"] += outcome.every_size
            counts["at_smaller_sizes"] += outcome.is_smaller
            findings.holding.add(rule.name)
        if outcome.state is State.FAILS:
            owner = origins.owner(rewrite.match.root)
            findings.failing.append(
                RolledBack(rule.name, root, owner, outcome.reason, self._reproduced(facts, rule, rewrite))
            )
        self.seconds += time.perf_counter() - began

    def _reproduced(self, facts: Facts, rule: Rule, rewrite: Substitution) -> str | None:
        """Write the smallest excerpt whose sides differ; return where, or None if it is not asked for."""
        if self._reproducers is None:
            return None
        narrowest = Excerpt.narrowest(facts, rewrite)
        first = (narrowest, narrowest.computing_sizes(_MOST_NODES))
        for excerpt in itertools.chain(first, narrowest.widened(_MOST_NODES)):
            outcome = self._outcome(excerpt, rule)
            if outcome.state is State.FAILS:
                return self._reproducers.write(rule.name, excerpt, outcome.feeds, outcome.types)
        return None

    def _checked(self, excerpt: Excerpt, rule: Rule) -> Outcome:
        """Return the outcome at a border where exact arithmetic decides, or where the rewrite holds by trials.

        If it holds nowhere, return the outcome at the widest border that runs. If values of the border are assumed to
        hold the sizes that shape inference found, the rewrite must also hold where they are computed.
        """
        decided = self._decided(excerpt) or excerpt
        outcome = self._outcome(decided, rule)
        if outcome.state is State.HOLDS and decided.assumes_sizes:
            computed = self._outcome(decided.computing_sizes(_MOST_NODES), rule)
            if computed.state is State.FAILS:  # unless all nodes above make it right
                computed = self._outcome([excerpt, *excerpt.widened(_MOST_NODES)][-1], rule)
            return computed if computed.state is State.FAILS else outcome
        if outcome.state is State.HOLDS:
            return outcome
        rounds = 1
        for wider in itertools.islice(excerpt.widened(_MOST_NODES), _MOST_LEVELS):
            rounds = _SUSPECT_ROUNDS if outcome.state is State.FAILS else rounds
            further = self._outcome(wider, rule, rounds)
            outcome = outcome if further.state is State.IMPOSSIBLE else further
            if outcome.state is State.HOLDS:
                break
        return outcome

    def _decided(self, excerpt: Excerpt) -> Excerpt | None:
        """Return the excerpt if its sides are equal in exact arithmetic, or a wider one; None if there is none.

        A wider one knows more of what the producers of the border compute.
        """
        if self._decision(excerpt).claim in EQUAL:
            return excerpt
        levels = excerpt.levels(_MOST_NODES)
        tried = dict.fromkeys([levels[place] for place in _TRIED_LEVELS if place < len(levels)] + levels[-1:])
        return next((each for each in map(excerpt.at, tried) if self._decision(each).claim in EQUAL), None)

    def _outcome(self, excerpt: Excerpt, rule: Rule, rounds: int = 1) -> Outcome:
        """Decide in exact arithmetic; run the nodes where that leaves something open.

        Exact arithmetic knows no signed zeros, infinities or NaN, so the results of a pass that promises identical bits
        are also compared, unless floats are only moved. Nodes that are equal and do not run got sizes that do not
        belong together, which the nodes before the rewrite happen to accept.
        """
        decision = self._decision(excerpt)
        if decision.claim is not Claim.ALL_VALUES or (rule.accuracy is Accuracy.EXACT and decision.computes):
            key = f"{rule.accuracy.value} {rounds} ".encode() + excerpt.signature
            if key not in self._outcomes:
                self._outcomes[key] = Check(excerpt, rule.accuracy, rounds).outcome()
            outcome = self._outcomes[key]
            differs = outcome.state is State.FAILS and not outcome.reason.startswith(_NOT_RUN)
            if decision.claim not in EQUAL or differs:
                return replace(outcome, undecided=_why(decision))
        every_size, is_smaller = decision.every_size, decision.is_smaller
        return Outcome(State.HOLDS, claim=decision.claim, every_size=every_size, is_smaller=is_smaller)

    def _decision(self, excerpt: Excerpt) -> Decision:
        """Return what exact arithmetic says; weights that the rewrite computed are compared for every rewrite."""
        known = self._decisions.get(excerpt.signature)
        if known is None or (known.claim in EQUAL and excerpt is not self._decided_last and excerpt.computed_elements):
            known = self._decisions[excerpt.signature] = decide(excerpt)
            self._decided_last = excerpt
        return known

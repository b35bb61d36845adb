"""Checks single rewrites where they happen: the nodes before and after, on border values of their own.

A rewrite is right if both sides agree whatever the border holds, whether or not the model's inputs can bring it about.
This also covers bodies that no trial enters. Rewrites of one structure are checked once. Where the two sides disagree,
the rewrite may rely on what the producers of the border compute (indices that count up, a mask of zeros and ones): the
border is moved up past them, and only a rewrite that disagrees there too is wrong. The reasons are in
`docs/decisions/0020-rewrites-checked-where-they-happen.md`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

from sardonyx.graph import origins
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Rule
from sardonyx.graph.transaction import Substitution
from sardonyx.proof.excerpts import Excerpt
from sardonyx.proof.rewrite_check import Check, Outcome, State
from sardonyx.record import Accuracy, RewriteChecks, RolledBack

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

"""The driver: finds where rules apply, carries out their rewrites one transaction at a time, and writes provenance.

The only code that changes a graph. Rules see nodes by operator type from an index; a rewrite sends its surroundings
back to the rules that care, until nothing applies any more. The run is deterministic, so a rewrite is undone by
running again without it (`forbidden`), and the state after any number of rewrites is had again with `limit`.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.naming import Names, rename_shadowing
from sardonyx.ir.opsets.adapter_base import CannotRaise
from sardonyx.ir.opsets.raising import HIGHEST, RAISE, Plan, plan
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Drop, Match, ModelRule, NodeRule, Proposal, Refused, Replacement, Rule, Share
from sardonyx.ir.scopes import label, operator
from sardonyx.ir.transaction import Change, Substitution, Transactions
from sardonyx.records.run import Event, Refusal, RewriteKind

REACH = 1  # how many steps around a rewrite are looked at again at once; the last sweep looks everywhere
ENDLESS = 50  # rewrites a node of the source, on average, after which rules must be undoing each other
HUB = 16  # users from which on a node's users are left to the last sweep, so that cost stays linear


@dataclass(slots=True)
class Tally:
    """What one rule changed, kept as it goes."""

    rewrites: int = 0
    nodes: int = 0
    constants: int = 0
    initializers: int = 0
    bytes: int = 0
    growth: int = 0  # bytes of the file, as `graph.growth` counts them
    seconds: float = 0.0


@dataclass(slots=True)
class Log:
    """What happened."""

    events: list[Event] = field(default_factory=list[Event])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])


Observer = Callable[[Facts, Rule, str, Substitution], None]


class _LimitReached(Exception):
    """The asked-for number of rewrites has been made."""


class Rewriter:
    """Runs rules over one model to their joint fixed point."""

    def __init__(
        self,
        facts: Facts,
        rules: Sequence[Rule],
        *,
        limit: int | None = None,
        forbidden: frozenset[tuple[str, str]] = frozenset(),
        max_opset: int = HIGHEST,
        progress: Callable[[str], None] | None = None,
        observe: Observer | None = None,
        borders: Borders | None = None,
    ) -> None:
        """Prepare to run `rules`; `forbidden` holds (rule name, event root) pairs that must not be carried out.

        A rule that needs a newer opset than the model has gets it raised, up to `max_opset`, where that can be done.
        `observe` is called with each replacement before it is carried out; it must not change anything. No rewrite
        crosses `borders`.
        """
        self._observe = observe
        self._facts = facts
        self._rules = rules
        self._limit = limit
        self._forbidden = forbidden
        self._progress: Callable[[str], None] = progress or _silent
        self._max_opset = max_opset
        self._unraisable: dict[int, str] = {}  # why not, by opset; asked anew with every sweep over everything
        self._log = Log(tallies={rule.name: Tally() for rule in (*rules, RAISE)})
        self._refusals: dict[tuple[str, str, ir.Node], Refusal] = {}
        self._index: dict[str, dict[ir.Node, None]] = defaultdict(dict)
        for scope in facts.scopes.values():
            for node in scope.graph:
                self._index[operator(node)][node] = None
        names = Names.of(facts.model)
        if rules:
            rename_shadowing(facts.model, names)
        self._transactions = Transactions(facts, names, borders or Borders())
        self._most = ENDLESS * (10 + sum(map(len, self._index.values())))
        self._pending: dict[str, OrderedDict[ir.Node, None]] = {rule.name: OrderedDict() for rule in rules}
        self._watching: dict[str, list[OrderedDict[ir.Node, None]]] = defaultdict(list)  # who waits for which operator
        for rule in rules:
            for root in rule.roots if isinstance(rule, NodeRule) else ():
                self._watching[root].append(self._pending[rule.name])

    def run(self) -> Log:
        """Infer shapes and sweep, again and again, until a sweep over everything changes nothing."""
        try:
            self._facts.infer()
            while new := self._sweep_all():
                if any(
                    event.kind in (RewriteKind.FUSE, RewriteKind.FOLD) for event in new
                ):  # the others teach nothing new
                    self._facts.infer()
        except _LimitReached:
            pass
        if self._facts.growth.limit is not None:
            self._transactions.drop_unused()
        self._log.refusals = [refusal for (_, _, node), refusal in self._refusals.items() if node.graph is not None]
        return self._log

    def _sweep_all(self) -> list[Event]:
        """Every rule over everything, then node rules over what rewrites touched; what that changed."""
        before = len(self._log.events)
        self._unraisable.clear()
        for rule in self._rules:
            for root in rule.roots if isinstance(rule, NodeRule) else ():
                self._pending[rule.name].update(self._index[root])
        self._sweep(everything=True)
        while any(self._pending.values()):
            self._sweep(everything=False)
        return self._log.events[before:]

    def _sweep(self, *, everything: bool) -> None:
        for rule in self._rules:
            began = time.perf_counter()
            self._progress(rule.name)
            if isinstance(rule, NodeRule):
                self._run_node_rule(rule)
            elif everything and isinstance(rule, ModelRule):
                self._run_model_rule(rule)
            self._log.tallies[rule.name].seconds += time.perf_counter() - began

    def _run_node_rule(self, rule: NodeRule) -> None:
        pending = self._pending[rule.name]
        while pending:
            node, _ = pending.popitem(last=False)
            if node.graph is None:
                continue
            scope = self._facts.scope(node)
            if scope.opset < rule.opset or (scope.in_function and _has_reference(node)):
                continue
            found = rule.match(node, self._facts)
            if isinstance(found, Match) and scope.opset < rule.needs:
                found = self._raise_for(rule, found)
                if found is None:
                    pending[node] = None  # asked again in the newer opset; what took its place is waiting already
            if isinstance(found, Match):
                self._replace(rule, found, functools.partial(rule.rewrite, found))
            elif found is not None:
                self._refuse(rule, found)

    def _run_model_rule(self, rule: ModelRule) -> None:
        for proposal in rule.propose(self._facts):
            match proposal:
                case Proposal(match=match, rewrite=rewrite):
                    self._replace(rule, match, rewrite)
                case Drop(value=value):
                    self._carry_out(rule, value.name or "", functools.partial(self._transactions.drop, value))
                case Share(duplicates=duplicates, kept=kept):
                    share = functools.partial(self._transactions.share, duplicates, kept)
                    self._carry_out(rule, duplicates[0].name or "", share)
                case Refused():
                    self._refuse(rule, proposal)

    def _replace(self, rule: Rule, match: Match, rewrite: Callable[[Builder], Replacement]) -> None:
        try:
            self._carry_out(rule, root_name(match), functools.partial(self._transactions.replace, match, rewrite))
        except Impossible as error:
            self._refuse(rule, Refused(str(error), match.nodes))

    def _raise_for(self, rule: NodeRule, match: Match) -> Match | Refused | None:
        """Raise the model to what a rule needs; the match where it must not be carried out anyway, or why not."""
        if (rule.name, root_name(match)) in self._forbidden:
            return match
        if self._facts.scope(match.root).in_function:
            return Refused(f"needs opset {rule.needs}, and a function keeps its own", match.nodes)
        if rule.needs not in self._unraisable:
            began = time.perf_counter()
            try:
                planned = self._plan(rule.needs)
            except CannotRaise as error:
                self._unraisable[rule.needs] = str(error)
            else:
                self._carry_out(RAISE, planned.name, functools.partial(self._transactions.raise_opset, planned))
                return None
            finally:
                spent = time.perf_counter() - began
                self._log.tallies[RAISE.name].seconds += spent
                self._log.tallies[rule.name].seconds -= spent  # which counts all that happens in its turn
        return Refused(f"needs opset {rule.needs}; {self._unraisable[rule.needs]}", match.nodes)

    def _plan(self, version: int) -> Plan:
        if version > self._max_opset:
            raise CannotRaise("the opset is not to be raised so far")
        standard = {op_type: nodes for op_type, nodes in self._index.items() if nodes and "::" not in op_type}
        planned = plan(self._facts, standard, version)
        if (RAISE.name, planned.name) in self._forbidden:
            raise CannotRaise("raising it was rolled back")
        return planned

    def _carry_out(self, rule: Rule, root: str, act: Callable[[], Change]) -> None:
        if (rule.name, root) in self._forbidden:
            return
        if self._limit is not None and len(self._log.events) >= self._limit:
            raise _LimitReached
        if len(self._log.events) >= self._most:
            last = sorted({event.pass_name for event in self._log.events[-self._most // 2 :]})
            raise AssertionError(f"these passes undo each other at {root!r}: {', '.join(last)}")
        if self._observe is not None:
            self._transactions.observe = functools.partial(self._show, self._observe, rule, root)
        change = act()
        self._log.events.append(change.event(rule.name, root, _source(type(rule))))
        tally = self._log.tallies[rule.name]
        tally.rewrites += 1
        tally.nodes += change.nodes
        tally.constants += change.constants
        tally.initializers += change.initializers
        tally.bytes += change.bytes
        tally.growth += change.growth
        self._reindex(change)

    def _show(self, observe: Observer, rule: Rule, root: str, replacement: Substitution) -> None:
        """Let an observer see a replacement; the time that it takes is not the rule's."""
        began = time.perf_counter()
        observe(self._facts, rule, root, replacement)
        self._log.tallies[rule.name].seconds -= time.perf_counter() - began

    def _reindex(self, change: Change) -> None:
        for node in change.removed:
            self._index[operator(node)].pop(node, None)
        for node in change.added:
            self._index[operator(node)][node] = None
        merged = {operator(node) for node in change.added} & {operator(node) for node in change.removed}
        for node in _around((*change.added, *change.neighbours)):
            name = operator(node)
            for pending in self._watching.get(name, ()):
                pending[node] = None
                if name in merged:  # so a chain is merged in pairs, and pairs of these, not link by link
                    pending.move_to_end(node)

    def _refuse(self, rule: Rule, refused: Refused) -> None:
        node = refused.nodes[-1]
        self._refusals[rule.name, refused.reason, node] = Refusal(
            rule.name, refused.reason, tuple(label(each) for each in refused.nodes), self._transactions.owner(node)
        )


def _silent(_: str) -> None:
    """Nobody listens."""


def root_name(match: Match) -> str:
    """The stable key of a rewrite within its rule: the first value it replaces."""
    return next((value.name for value in match.replaced if value.name), None) or label(match.root)


def _has_reference(node: ir.Node) -> bool:
    """Whether an attribute is a function's parameter, whose value no rule can know."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


def _around(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes given and those within reach of them, in the graph still, each once."""
    seen = dict.fromkeys(node for node in nodes if node.graph is not None)
    edge = list(seen)
    for _ in range(REACH):
        step: list[ir.Node] = []
        for node in edge:
            users = node.successors()
            for neighbour in (*node.predecessors(), *(users if len(users) <= HUB else ())):
                if neighbour not in seen and neighbour.graph is not None:
                    seen[neighbour] = None
                    step.append(neighbour)
        edge = step
    yield from seen


@functools.cache
def _source(rule: type[Rule]) -> str:
    work = getattr(rule, "rewrite", None) or getattr(rule, "propose", None)
    file, code = rule.__module__.replace(".", "/"), getattr(work, "__code__", None)
    return f"{file}.py:{code.co_firstlineno}" if code is not None else file

"""The rewriter: finds where rules apply, performs their rewrites one transaction at a time, and writes provenance.

Only this code changes a graph. Rules see nodes by operator from an index. After a rewrite, the nodes around it are
matched again, until no rule applies (a fixed point).

Invariants that undo relies on:

- A run is deterministic: the same model, rules and `forbidden` give the same sequence of events.
- A run with `limit=k` ends in the state after the first k events of the unlimited run.
- Therefore one rewrite is undone by running again on the source with its key (rule name, root name) in `forbidden`.
  Later rewrites that depend on it do not match then; the others are found again.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.errors import SardonyxError
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.opset_raising import HIGHEST, RAISE, CannotRaise, OpsetPlan, plan
from sardonyx.ir.origins import owner
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Builder, Drop, Match, ModelRule, NodeRule, Proposal, Refused, Replacement, Rule, Share
from sardonyx.ir.scopes import Names, UnknownAttribute, has_references, label, operator, rename_shadowing
from sardonyx.ir.transaction import Change, Substitution, Transactions
from sardonyx.records.run import Event, Refusal, RewriteKind

MAX_REWRITES_PER_NODE = 50  # of the source, on average; beyond that, rules must be undoing each other
HUB_CONSUMERS = 16  # consumers above which a node's consumers are left to the last sweep, so that the cost stays linear


class Tally(Struct):
    """What one rule changed so far."""

    rewrites: int = 0
    nodes: int = 0
    constants: int = 0
    initializers: int = 0
    bytes: int = 0
    growth: int = 0  # bytes of the file, as `size_budget` counts them
    seconds: float = 0.0


class Log(Struct):
    """The events, refusals and tallies of one run."""

    events: list[Event] = field(default_factory=list[Event])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])


_ADDS_FACTS = (RewriteKind.FUSE, RewriteKind.FOLD)  # rewrites after which inference may learn something new
Observer = Callable[[Facts, Rule, str, Substitution], None]


class EndlessRewriting(SardonyxError):
    """Passes undo each other, so that no fixed point is reached."""


class _LimitReached(Exception):
    """The requested number of rewrites has been performed."""


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
        """Prepare to run `rules`.

        Args:
            facts: The facts about the model, which is changed.
            rules: The rules in the order in which each sweep runs them.
            limit: Stop after this many rewrites.
            forbidden: Pairs (rule name, root name) of rewrites that are skipped.
            max_opset: The opset may be raised up to this version for a rule that needs it.
            progress: Called with the name of each rule before it runs.
            observe: Called with each replacement before it is performed; it must not change anything.
            borders: Modules whose borders no rewrite may cross.
        """
        self.running: Rule | None = None  # the rule whose code runs; after an exception, the rule that raised it
        self._observe = observe
        self._facts = facts
        self._rules = rules
        self._limit = limit
        self._forbidden = forbidden
        self._progress = progress
        self._max_opset = max_opset
        self._unraisable: dict[int, str] = {}  # the reason, by opset; cleared before every sweep over all nodes
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
        self._max_rewrites = MAX_REWRITES_PER_NODE * (10 + sum(map(len, self._index.values())))
        self._pending: dict[str, OrderedDict[ir.Node, None]] = {rule.name: OrderedDict() for rule in rules}
        self._queues: dict[str, list[OrderedDict[ir.Node, None]]] = defaultdict(list)  # of the rules, by operator
        for rule in rules:
            for root in rule.roots if isinstance(rule, NodeRule) else ():
                self._queues[root].append(self._pending[rule.name])

    def run(self) -> Log:
        """Infer shapes and sweep until a sweep over all nodes changes nothing."""
        try:
            self._facts.infer()
            while events := self._sweep_all():
                if any(event.kind in _ADDS_FACTS for event in events):
                    self._facts.infer()
        except _LimitReached:
            pass
        if self._facts.growth.limit is not None:
            self._transactions.drop_unused()
        self._log.refusals = [refusal for (_, _, node), refusal in self._refusals.items() if node.graph is not None]
        return self._log

    def _sweep_all(self) -> list[Event]:
        """Run every rule over all nodes, then node rules over what rewrites touched; return the new events."""
        before = len(self._log.events)
        self._unraisable.clear()
        for rule in self._rules:
            for root in rule.roots if isinstance(rule, NodeRule) else ():
                self._pending[rule.name].update(self._index[root])
        self._sweep(all_nodes=True)
        while any(self._pending.values()):
            self._sweep(all_nodes=False)
        return self._log.events[before:]

    def _sweep(self, *, all_nodes: bool) -> None:
        for rule in self._rules:
            start = time.perf_counter()
            if self._progress is not None:
                self._progress(rule.name)
            self.running = rule
            if isinstance(rule, NodeRule):
                self._run_node_rule(rule)
            elif all_nodes and isinstance(rule, ModelRule):
                self._run_model_rule(rule)
            self.running = None
            self._log.tallies[rule.name].seconds += time.perf_counter() - start

    def _run_node_rule(self, rule: NodeRule) -> None:
        pending, facts, scopes = self._pending[rule.name], self._facts, self._facts.scopes
        while pending:
            node, _ = pending.popitem(last=False)
            graph = node.graph
            if graph is None:
                continue
            scope = scopes[graph]
            if scope.opset < rule.opset or (scope.in_function and has_references(node)):
                continue
            try:
                result = rule.outcome(rule.match, node, facts)
            except UnknownAttribute as error:  # of a node that the pass looked at on the way
                result = Refused(str(error))
            if result is None:
                continue
            if isinstance(result, Match) and scope.opset < rule.needs:
                result = self._raise_for(rule, result)
            if isinstance(result, Match):
                self._replace(rule, result, functools.partial(rule.rewrite, result))
            elif result is not None:
                self._refuse(rule, result, node)
            else:  # match again in the newer opset; if it was replaced, the replacement is queued already
                pending[node] = None

    def _run_model_rule(self, rule: ModelRule) -> None:
        for proposal in rule.propose(self._facts):
            match proposal:
                case Proposal(match=match, rewrite=rewrite):
                    self._replace(rule, match, rewrite)
                case Drop(value=value):
                    self._perform(rule, value.name or "", functools.partial(self._transactions.drop, value))
                case Share(duplicates=duplicates, kept=original):
                    share = functools.partial(self._transactions.share, duplicates, original)
                    self._perform(rule, duplicates[0].name or "", share)
                case Refused():
                    self._refuse(rule, proposal, proposal.nodes[-1])

    def _replace(self, rule: Rule, match: Match, rewrite: Callable[[Builder], Replacement]) -> None:
        try:
            self._perform(rule, root_name(match), functools.partial(self._transactions.replace, match, rewrite))
        except Impossible as error:
            self._refuse(rule, Refused(str(error), match.nodes), match.root)

    def _raise_for(self, rule: NodeRule, match: Match) -> Match | Refused | None:
        """Raise the opset of the model to the one that a rule needs.

        Return None if it was raised, the match itself if it is forbidden anyway, and otherwise why the opset stays.
        """
        if (rule.name, root_name(match)) in self._forbidden:
            return match
        if self._facts.scope(match.root).in_function:
            return Refused(f"needs opset {rule.needs}, but the opset of a function is not raised", match.nodes)
        if rule.needs not in self._unraisable:
            start = time.perf_counter()
            try:
                planned = self._plan(rule.needs)
            except CannotRaise as error:
                self._unraisable[rule.needs] = str(error)
            else:
                self._perform(RAISE, planned.name, functools.partial(self._transactions.raise_opset, planned))
                return None
            finally:
                elapsed = time.perf_counter() - start
                self._log.tallies[RAISE.name].seconds += elapsed
                self._log.tallies[rule.name].seconds -= elapsed  # whose time includes this
        return Refused(f"needs opset {rule.needs}; {self._unraisable[rule.needs]}", match.nodes)

    def _plan(self, version: int) -> OpsetPlan:
        if version > self._max_opset:
            raise CannotRaise("the opset may not be raised that far")
        standard = {op_type: nodes for op_type, nodes in self._index.items() if nodes and "::" not in op_type}
        planned = plan(self._facts, standard, version)
        if (RAISE.name, planned.name) in self._forbidden:
            raise CannotRaise("raising it was rolled back")
        return planned

    def _perform(self, rule: Rule, root: str, transaction: Callable[[], Change]) -> None:
        if (rule.name, root) in self._forbidden:
            return
        if self._limit is not None and len(self._log.events) >= self._limit:
            raise _LimitReached
        if len(self._log.events) >= self._max_rewrites:
            last = sorted({event.pass_name for event in self._log.events[-self._max_rewrites // 2 :]})
            raise EndlessRewriting(
                f"these passes undo each other at {root!r}: {', '.join(last)}",
                hint="leave one of them out with `skip`",
            )
        if self._observe is not None:
            self._transactions.observe = functools.partial(self._show, self._observe, rule, root)
        change = transaction()
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
        """Call the observer with a replacement, without counting its time as the rule's."""
        start, self.running = time.perf_counter(), None
        observe(self._facts, rule, root, replacement)
        self.running = rule
        self._log.tallies[rule.name].seconds -= time.perf_counter() - start

    def _reindex(self, change: Change) -> None:
        removed, added = [*map(operator, change.removed)], [*map(operator, change.added)]
        for name, node in zip(removed, change.removed, strict=True):
            self._index[name].pop(node, None)
        for name, node in zip(added, change.added, strict=True):
            self._index[name][node] = None
        merged = {*added}.intersection(removed)
        for node in _around((*change.added, *change.neighbours)):
            name = operator(node)
            for pending in self._queues.get(name, ()):
                pending[node] = None
                if name in merged:  # so that a chain is merged in pairs, then pairs of pairs, and not one by one
                    pending.move_to_end(node)

    def _refuse(self, rule: Rule, refused: Refused, root: ir.Node) -> None:
        nodes = refused.nodes or (root,)
        self._refusals[rule.name, refused.reason, nodes[-1]] = Refusal(
            rule.name, refused.reason, tuple(map(label, nodes)), owner(nodes[-1])
        )


def root_name(match: Match) -> str:
    """Return the stable key of a rewrite within its rule: the name of the first value it replaces."""
    return next((value.name for value in match.replaced if value.name), None) or label(match.root)


def _around(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield these nodes and those next to them that are still in the graph, each once."""
    found = dict.fromkeys(nodes)
    for node in [*found]:
        if node.graph is not None:
            users = node.successors()
            found.update(dict.fromkeys((*node.predecessors(), *(users if len(users) <= HUB_CONSUMERS else ()))))
    return (node for node in found if node.graph is not None)


@functools.cache
def _source(rule: type[Rule]) -> str:
    work = next((item for item in vars(rule).values() if inspect.isfunction(item)), None)
    file, code = rule.__module__.replace(".", "/"), getattr(work, "__code__", None)
    return f"{file}.py:{code.co_firstlineno}" if code is not None else file

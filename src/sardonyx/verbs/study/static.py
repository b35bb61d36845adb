"""Experiments that only read graphs: what passes match and skip, chains of shape arithmetic, architecture families."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.fleet.cells import Cell
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import READS_SHAPE
from sardonyx.ir.scopes import label
from sardonyx.ir.shapes import Size
from sardonyx.ir.shapes.expr import names_in, symbol
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.verbs.analyze.costs.onnx_program import name_dims
from sardonyx.verbs.analyze.fingerprint import fingerprint
from sardonyx.verbs.optimize.pipeline import opportunities
from sardonyx.verbs.study.experiment import (
    Answer,
    Answers,
    CellAnswer,
    Experiment,
    StudyOptions,
    Subject,
    Tables,
    candidate,
    integer,
    several,
)

REASONS_NAMED = 3  # in the findings


class Forensics(Experiment):
    """Matches of each pass by model, rewritten and skipped, with the reasons."""

    name = "forensics"
    key = "places"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run the passes on a copy."""
        record = opportunities(subject.path, target=cell.options["target"])
        return {
            "nodes": [record.before.nodes, record.after.nodes],
            "passes": [
                {
                    "name": each.name,
                    "rewritten": each.rewrites,
                    "skipped": [[group.reason, group.count] for group in each.refusals],
                }
                for each in record.passes
                if each.rewrites or each.refusals
            ],
        }

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return all counts, the skipped matches as a matrix, and the reasons."""
        about = f"Every pass of the target {options.target} was run on a copy."
        return (
            Table(
                "forensics",
                "Matches of the passes",
                ("model", "pass", "rewritten", "skipped"),
                tuple(row for answer in answers for row in _rows(answer)),
                about,
            ),
            _matrix(answers, about),
            Table(
                "why_left",
                "Why passes skip matches",
                ("model", "pass", "reason", "places"),
                tuple(row for answer in answers for row in _reasons(answer)),
                about,
            ),
        )

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how many matches are skipped, and the most frequent reasons."""
        table = tables["forensics"]
        models = several(len(tables["forensics_matrix"].columns) - 1, "model")
        rewritten, skipped = (sum(integer(row[at]) for row in table.rows) for at in (2, 3))
        text = f"The passes rewrite {several(rewritten, 'place')} and skip {skipped}, over {models}."
        return (Finding(text, table.name), *_reason_findings(tables["why_left"]))


def _rows(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for each in answer.answer["passes"]:
        yield answer.subject.name, each["name"], each["rewritten"], sum(count for _, count in each["skipped"])


def _reasons(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for each in answer.answer["passes"]:
        for reason, count in each["skipped"]:
            yield answer.subject.name, each["name"], reason, count


def _matrix(answers: Sequence[CellAnswer], about: str) -> Table:
    """Return the passes that skip matches, with a column for each model."""
    skipped: dict[Entry, dict[Entry, Entry]] = {}
    for answer in answers:
        for model, name, _, count in _rows(answer):
            if count:
                skipped.setdefault(name, {})[model] = count
    models = [answer.subject.name for answer in answers]
    rows = tuple((name, *(counts.get(model, 0) for model in models)) for name, counts in skipped.items())
    return Table("forensics_matrix", "Skipped matches by pass and model", ("pass", *models), rows, about)


def _reason_findings(table: Table) -> Iterator[Finding]:
    reasons: Counter[tuple[Entry, Entry]] = Counter()
    for _, name, reason, places in table.rows:
        reasons[name, reason] += integer(places)
    total = several(reasons.total(), "skipped place")
    for (name, reason), places in reasons.most_common(REASONS_NAMED):
        yield Finding(f"Of {total}, {places} {'is' if places == 1 else 'are'} of {name}: {reason}.", table.name)


STATIC, DYNAMIC, DATA = "static sizes", "dynamic dimensions", "sizes that depend on data"
_COUNTED = ("chains", "nodes", "longest")
NOTHING, OUTPUT = "nothing", "an output"
_ARITHMETIC = (
    *("Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Where", "Equal"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "ReduceProd", "ConstantOfShape", "Range", "Floor", "Ceil"),
)


class ShapeChains(Experiment):
    """The number of chains, their consumers, and the dimensions they depend on."""

    name = "shape-chains"
    key = "chains"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Find the chains before and after the passes."""
        states = {"before": (), "after": None}
        target = cell.options["target"]
        return {name: chains_of(candidate(subject.path, target, passes).model) for name, passes in states.items()}

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return the number of chains by model, and kinds of chains by model and state."""
        return (
            Table(
                "shape_chains",
                "Chains of shape arithmetic",
                (
                    "model",
                    *(f"{what}_{when}" for what in ("chains", "nodes", "longest") for when in ("before", "after")),
                ),
                tuple(_sums(answer) for answer in answers),
                "A chain is a Shape node and the arithmetic on small integer tensors that depends on it; nodes that "
                "several chains share are counted once.",
            ),
            Table(
                "shape_chain_kinds",
                "What chains of shape arithmetic depend on",
                ("model", "state", "depends_on", "dims", "feeds", "chains", "nodes"),
                tuple(row for answer in answers for row in _kinds(answer)),
                "By the symbolic sizes that a chain computes: static if all are numbers, dynamic if some are dynamic "
                "dimensions of the inputs, data if some cannot be inferred from the graph.",
            ),
        )

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how many chains are left, and for which reason."""
        table = tables["shape_chains"]
        models = several(len(table.rows), "model")
        before, after = (sum(integer(row[at]) for row in table.rows) for at in (1, 2))
        if not before and not after:
            return (Finding(f"No chain of shape arithmetic in {models}, before or after.", table.name),)
        left = Counter[str]()
        dims: set[str] = set()
        for _, state, kind, named, _, count, _ in tables["shape_chain_kinds"].rows:
            if state == "after":
                left[str(kind)] += integer(count)
                dims.update(filter(None, str(named or "").split(", ")))
        text = f"Of {several(before, 'chain')} of shape arithmetic in {models}, the passes leave {after}"
        reasons = (
            (left[DYNAMIC], f"{DYNAMIC} ({', '.join(sorted(dims))})"),
            (left[DATA], DATA),
            (left[STATIC], f"{STATIC}, which could still be folded"),
        )
        why = ", ".join(f"{count} for {reason}" for count, reason in reasons if count)
        return (Finding(f"{text}{': ' + why if why else ''}.", "shape_chain_kinds"),)


def chains_of(model: ir.Model) -> list[dict[str, object]]:
    """Return the nodes, consumers and dimensions of each chain."""
    facts = Facts(model)
    name_dims(facts.shapes, [value for value in model.graph.inputs if not value.is_initializer()], symbol)
    facts.infer()
    chains: list[dict[str, object]] = []
    for chain in _chains(facts):
        inside = set(chain)
        ends = [value for node in chain for value in node.outputs if _leaves(value, inside)]
        kind, dims = _depends(ends, inside, facts)
        feeds = sorted(_consumers(ends, inside))
        chains.append({"nodes": [*map(label, chain)], "feeds": feeds, "depends_on": kind, "dims": dims})
    return chains


def _chains(facts: Facts) -> Iterator[Collection[ir.Node]]:
    """Yield each Shape that is computed at run time, with the integer arithmetic on it."""
    starts = (node for scope in facts.live_scopes() for node in scope.graph)
    for start in starts:
        if start.domain or start.op_type not in READS_SHAPE:
            continue
        chain, edge = {start: None}, [start]
        while edge:
            readers = {use.node: None for node in edge for value in node.outputs for use in value.uses()}
            edge = [reader for reader in readers if reader not in chain and _is_arithmetic(reader, facts)]
            chain.update(dict.fromkeys(edge))
        yield chain


def _is_arithmetic(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node computes on sizes: integers of rank 0 or 1."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return False
    dtype = facts.dtype(node.inputs[0])
    return dtype is not None and dtype.is_integer() and facts.rank(node.inputs[0]) in (0, 1)


def _leaves(value: ir.Value, inside: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in inside for use in value.uses())


def _consumers(ends: Iterable[ir.Value], inside: set[ir.Node]) -> set[str]:
    names: set[str] = set()
    for value in ends:
        names.update(use.node.op_type for use in value.uses() if use.node not in inside)
        names.update([OUTPUT] if value.is_graph_output() else [])
    return names or {NOTHING}


def _depends(ends: Iterable[ir.Value], inside: set[ir.Node], facts: Facts) -> tuple[str, list[str]]:
    """Return the kind of sizes that the chain computes, and the names of their dimensions."""
    sizes = [size for value in ends for size in _sizes(value, inside, facts)]
    inferred = [size for size in sizes if size is not None and (isinstance(size, int) or not size.is_vague)]
    names = sorted(set(names_in(inferred)))
    if len(inferred) < len(sizes):
        return DATA, names
    return (DYNAMIC, names) if names else (STATIC, [])


def _sizes(value: ir.Value, inside: set[ir.Node], facts: Facts) -> Sequence[Size | None]:
    """Return the sizes in a value; if its contents are not sizes (a range, a fill), those it is computed from."""
    contents = facts.contents(value)
    if contents is not None and None not in contents:
        return contents
    node = value.producer()
    inputs = node.inputs if node is not None else ()
    operands = [operand for operand in inputs if operand is not None and operand.producer() in inside]
    return [size for operand in operands for size in _sizes(operand, inside, facts)] if operands else (None,)


def _sums(answer: CellAnswer) -> tuple[Entry, ...]:
    states = [answer.answer["before"], answer.answer["after"]]
    chains = [len(state) for state in states]
    nodes = [_distinct(state) for state in states]
    longest = [max((len(chain["nodes"]) for chain in state), default=0) for state in states]
    return (answer.subject.name, *chains, *nodes, *longest)


def _kinds(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for state in ("before", "after"):
        groups: dict[tuple[str, str, str], list[Answer]] = defaultdict(list)
        for chain in answer.answer[state]:
            groups[chain["depends_on"], ", ".join(chain["dims"]), ", ".join(chain["feeds"])].append(chain)
        for (kind, dims, feeds), chains in sorted(groups.items()):
            yield answer.subject.name, state, kind, dims or None, feeds, len(chains), _distinct(chains)


def _distinct(chains: Iterable[Answer]) -> int:
    return len({node for chain in chains for node in chain["nodes"]})


CERTAIN_MODELS = 10  # of known family, needed for a certain finding
_Z = 1.96  # quantile of the normal distribution for 95 %


class Families(Experiment):
    """Fingerprints before and after the passes, compared with the known families."""

    name = "families"
    key = "fingerprints"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Compute the fingerprint of the file, and of the graph after the passes."""
        after = candidate(subject.path, cell.options["target"]).model
        return {"before": _guess(io.load(subject.path)), "after": _guess(after)}

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return one row for each model."""
        return (
            Table(
                "families",
                "Architecture families, guessed from structure",
                ("model", "known", "before", "confidence_before", "after", "confidence_after", "right", "stays",
                 "evidence"),
                tuple(_row(answer) for answer in answers),
                "Guessed from operators and their connections, without names. known: the family of a model of the "
                "built-in zoo, a dash for other models; right: guessed both before and after the passes.",
            ),
        )  # fmt: skip

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how often the guess is right, and whether fusion changes it."""
        return tuple(_findings(tables["families"]))


def _guess(model: ir.Model) -> dict[str, Any]:
    guess = fingerprint(model)
    return {"family": str(guess.family), "confidence": guess.confidence, "evidence": list(guess.evidence)}


def _row(answer: CellAnswer) -> tuple[Entry, ...]:
    before, after, known = answer.answer["before"], answer.answer["after"], answer.subject.family
    right = None if known is None else before["family"] == after["family"] == known
    return (
        answer.subject.name, known, before["family"], before["confidence"], after["family"], after["confidence"],
        right, before["family"] == after["family"], "; ".join(before["evidence"]),
    )  # fmt: skip


def _findings(table: Table) -> Iterator[Finding]:
    if not table.rows:
        return
    judged = [row for row in table.rows if row[6] is not None]
    right = sum(row[6] is True for row in judged)
    if judged:
        low, high = wilson(right, len(judged))
        few = f"; {several(len(judged), 'model')} are too few to be certain" if len(judged) < CERTAIN_MODELS else ""
        text = f"The guessed family is right for {right} of {several(len(judged), 'model')}"
        yield Finding(f"{text} (95 %: {low:.0%} to {high:.0%}){few}.", table.name, certain=not few)
    else:
        text = "The true family of these models is not known, so the guesses cannot be checked."
        yield Finding(text, table.name, certain=False)
    wrong = [f"{row[0]} ({row[1]}, guessed {row[2]} before and {row[4]} after)" for row in judged if not row[6]]
    if wrong:
        yield Finding(f"Guessed wrongly: {', '.join(wrong)}.", table.name)
    changed = [f"{row[0]} ({row[2]} → {row[4]})" for row in table.rows if not row[7]]
    count = several(len(table.rows), "model")
    yield Finding(
        f"The passes change the guessed family of {', '.join(changed)}, out of {count}." if changed
        else f"The passes change the guessed family of none of {count}.",
        table.name,
    )  # fmt: skip


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is accurate near 0 and 1 too."""
    share, square = successes / count, _Z * _Z / count
    centre = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    # The proportion lies inside despite rounding.
    return min(share, max(0.0, centre - reach)), max(share, min(1.0, centre + reach))

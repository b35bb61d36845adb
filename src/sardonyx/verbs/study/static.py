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
from sardonyx.ir.scopes import is_used_outside, label
from sardonyx.ir.shapes import Size
from sardonyx.ir.shapes.expr import names_in, symbol
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.verbs.analyze.costs.onnx_program import name_dims
from sardonyx.verbs.analyze.fingerprint import fingerprint
from sardonyx.verbs.optimize.pipeline import opportunities
from sardonyx.verbs.study.experiment import (
    Answer,
    Answers,
    Experiment,
    StudyOptions,
    Subject,
    Tables,
    candidate,
    integer,
    several,
)

_REASONS_NAMED = 3  # in the findings


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
        rows: list[tuple[Entry, ...]] = []
        reasons: list[tuple[Entry, ...]] = []
        matrix: dict[Entry, dict[Entry, Entry]] = {}
        for model, each in ((answer.subject.name, each) for answer in answers for each in answer.answer["passes"]):
            skipped = sum(count for _, count in each["skipped"])
            rows.append((model, each["name"], each["rewritten"], skipped))
            reasons += ((model, each["name"], reason, count) for reason, count in each["skipped"])
            if skipped:
                matrix.setdefault(each["name"], {})[model] = skipped
        models = [answer.subject.name for answer in answers]
        by_pass = tuple((name, *(counts.get(model, 0) for model in models)) for name, counts in matrix.items())
        about = f"Every pass of the target {options.target} was run on a copy."
        columns = ("model", "pass", "rewritten", "skipped"), ("model", "pass", "reason", "places")
        return (
            Table("forensics", "Matches of the passes", columns[0], tuple(rows), about),
            Table("forensics_matrix", "Skipped matches by pass and model", ("pass", *models), by_pass, about),
            Table("why_left", "Why passes skip matches", columns[1], tuple(reasons), about),
        )

    def findings(self, tables: Tables) -> Iterator[Finding]:
        """Yield how many matches are skipped, and the most frequent reasons."""
        table, reasons = tables["forensics"], Counter[tuple[Entry, Entry]]()
        models = several(len(tables["forensics_matrix"].columns) - 1, "model")
        rewritten, skipped = (sum(integer(row[at]) for row in table.rows) for at in (2, 3))
        text = f"The passes rewrite {several(rewritten, 'place')} and skip {skipped}, over {models}."
        yield Finding(text, table.name)
        for _, name, reason, places in tables["why_left"].rows:
            reasons[name, reason] += integer(places)
        total = several(reasons.total(), "skipped place")
        for (name, reason), places in reasons.most_common(_REASONS_NAMED):
            yield Finding(f"Of {total}, {places} {'is' if places == 1 else 'are'} of {name}: {reason}.", "why_left")


STATIC, DYNAMIC, DATA = "static sizes", "dynamic dimensions", "sizes that depend on data"
_COUNTED = ("chains", "nodes", "longest")
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
        sums: list[tuple[Entry, ...]] = []
        kinds: list[tuple[Entry, ...]] = []
        for answer in answers:
            model, states = answer.subject.name, [answer.answer["before"], answer.answer["after"]]
            longest = [max((len(chain["nodes"]) for chain in state), default=0) for state in states]
            sums.append((model, *map(len, states), *map(_distinct, states), *longest))
            for when, state in zip(("before", "after"), states, strict=True):
                groups: dict[tuple[str, str, str], list[Answer]] = defaultdict(list)
                for chain in state:
                    groups[chain["depends_on"], ", ".join(chain["dims"]), ", ".join(chain["feeds"])].append(chain)
                for (kind, dims, feeds), chains in sorted(groups.items()):
                    kinds.append((model, when, kind, dims or None, feeds, len(chains), _distinct(chains)))
        return (
            Table(
                "shape_chains",
                "Chains of shape arithmetic",
                ("model", *(f"{what}_{when}" for what in _COUNTED for when in ("before", "after"))),
                tuple(sums),
                "A chain is a Shape node and the arithmetic on small integer tensors that depends on it; nodes that "
                "several chains share are counted once.",
            ),
            Table(
                "shape_chain_kinds",
                "What chains of shape arithmetic depend on",
                ("model", "state", "depends_on", "dims", "feeds", "chains", "nodes"),
                tuple(kinds),
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


def _distinct(chains: Iterable[Answer]) -> int:
    return len({node for chain in chains for node in chain["nodes"]})


def chains_of(model: ir.Model) -> list[dict[str, object]]:
    """Return the nodes, consumers and dimensions of each chain."""
    facts = Facts(model)
    name_dims(facts.shapes, [value for value in model.graph.inputs if not value.is_initializer()], symbol)
    facts.infer()
    chains: list[dict[str, object]] = []
    for chain in _chains(facts):
        inside = set(chain)
        ends = [value for node in chain for value in node.outputs if is_used_outside(value, inside)]
        feeds = {use.node.op_type for value in ends for use in value.uses() if use.node not in inside}
        feeds |= {"an output"} if any(value.is_graph_output() for value in ends) else set()
        sizes = [size for value in ends for size in _sizes(value, inside, facts)]
        inferred = [size for size in sizes if size is not None and (isinstance(size, int) or not size.is_vague)]
        dims = sorted(set(names_in(inferred)))
        kind = DATA if len(inferred) < len(sizes) else DYNAMIC if dims else STATIC
        nodes = [*map(label, chain)]
        chains.append({"nodes": nodes, "feeds": sorted(feeds or {"nothing"}), "depends_on": kind, "dims": dims})
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


def _sizes(value: ir.Value, inside: set[ir.Node], facts: Facts) -> Sequence[Size | None]:
    """Return the sizes in a value; if its contents are not sizes (a range, a fill), those it is computed from."""
    contents = facts.contents(value)
    if contents is not None and None not in contents:
        return contents
    node = value.producer()
    inputs = node.inputs if node is not None else ()
    operands = [operand for operand in inputs if operand is not None and operand.producer() in inside]
    return [size for operand in operands for size in _sizes(operand, inside, facts)] if operands else (None,)


CERTAIN_MODELS = 10  # of known family, needed for a certain finding
_Z_95 = 1.96  # quantile of the normal distribution for 95 %


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
        rows: list[tuple[Entry, ...]] = []
        for answer in answers:
            known, before, after = answer.subject.family, answer.answer["before"], answer.answer["after"]
            stays = before["family"] == after["family"]
            right = None if known is None else stays and after["family"] == known
            guesses = (guess[part] for guess in (before, after) for part in ("family", "confidence"))
            rows.append((answer.subject.name, known, *guesses, right, stays, "; ".join(before["evidence"])))
        return (
            Table(
                "families",
                "Architecture families, guessed from structure",
                ("model", "known", "before", "confidence_before", "after", "confidence_after", "right", "stays",
                 "evidence"),
                tuple(rows),
                "Guessed from operators and their connections, without names. known: the family of a model of the "
                "built-in zoo, a dash for other models; right: guessed both before and after the passes.",
            ),
        )  # fmt: skip

    def findings(self, tables: Tables) -> Iterator[Finding]:
        """Yield how often the guess is right, and whether fusion changes it."""
        rows = tables["families"].named_rows()
        judged = [row for row in rows if row["right"] is not None]
        right = sum(row["right"] is True for row in judged)
        if judged:
            low, high = wilson(right, len(judged))
            few = f"; {several(len(judged), 'model')} are too few to be certain" if len(judged) < CERTAIN_MODELS else ""
            text = f"The guessed family is right for {right} of {several(len(judged), 'model')}"
            yield Finding(f"{text} (95 %: {low:.0%} to {high:.0%}){few}.", "families", certain=not few)
        elif rows:
            text = "The true family of these models is not known, so the guesses cannot be checked."
            yield Finding(text, "families", certain=False)
        guessed = "{model} ({known}, guessed {before} before and {after} after)"
        if wrong := [guessed.format(**row) for row in judged if not row["right"]]:
            yield Finding(f"Guessed wrongly: {', '.join(wrong)}.", "families")
        changed = ["{model} ({before} → {after})".format(**row) for row in rows if not row["stays"]]
        where = f"{', '.join(changed)}, out" if changed else "none"
        if rows:
            yield Finding(
                f"The passes change the guessed family of {where} of {several(len(rows), 'model')}.", "families"
            )


def _guess(model: ir.Model) -> dict[str, Any]:
    guess = fingerprint(model)
    return {"family": str(guess.family), "confidence": guess.confidence, "evidence": list(guess.evidence)}


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion, which is accurate near 0 and 1 too."""
    share, square = successes / count, _Z_95 * _Z_95 / count
    centre = (share + square / 2) / (1 + square)
    reach = _Z_95 * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    # The proportion lies inside despite rounding.
    return min(share, max(0.0, centre - reach)), max(share, min(1.0, centre + reach))

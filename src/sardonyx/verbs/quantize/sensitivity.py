"""What is measured to choose precisions: the groups of modules, the loss of each alone, times, and the front of both.

A group is a module that owns products. Modules that share a weight are one group, because the weight is stored twice if
only one of them is quantized. If there are more groups than can be measured, modules are joined within the one that
contains them, the smallest first. Products of no module, as all of a file without tags, are grouped in the order in
which they run: neighbours can stay in integers from one to the next.

The front says in which order groups are quantized: by gain for each unit of loss (a sweep of a Lagrange multiplier).
The losses of modules that are quantized alone add in squares, as a first prediction. For a multiplier λ, every group
takes the option with the largest gain - λ · loss²; as λ falls, groups change along the convex hulls of their options.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import UsageError
from sardonyx.records.bench import Comparison
from sardonyx.records.provenance import lineage, lowest_common, module_of
from sardonyx.records.quantization import Scores
from sardonyx.verbs.bench.bench import bench
from sardonyx.verbs.optimize import run_tables
from sardonyx.verbs.quantize.budget import margin_of
from sardonyx.verbs.quantize.loss import Answers, measure
from sardonyx.verbs.quantize.precisions import Assignment, Job, Plan, Precision
from sardonyx.verbs.quantize.recipe import Selection, Simulated
from sardonyx.verbs.quantize.samples import Sample
from sardonyx.verification.subject import Subject

_MOST_SHAPES = 4  # different shapes that are timed; the smallest of more are timed together


class Group(Struct, frozen=True):
    """Modules whose precision is chosen together."""

    name: str
    modules: tuple[str, ...]  # or labels of nodes that belong to no module
    products: int
    elements: int  # of the weights
    shapes: tuple[tuple[int, int], ...]  # of the weights, sorted
    number: int = 0  # of the shapes: groups with products of the same shapes have the same, as all small ones do


def find_groups(products: Sequence[Simulated], most: int) -> list[Group]:
    """Return at most this many groups of products, in the given order, which is that in which they run."""
    owned: dict[str, list[Simulated]] = defaultdict(list)
    for product in products:
        owned[module_of(product.module)].append(product)
    runs = _runs(owned.get("", ()), max(1, most - len(owned) + 1))
    if runs:
        del owned[""]
        owned |= {run[0].node: run for run in runs}
    labels = {run[0].node: tuple(dict.fromkeys(product.node for product in run)) for run in runs}
    sizes = {module: sum(product.elements for product in held) for module, held in owned.items()}
    joined = [(modules, sum(sizes[module] for module in modules)) for modules in _joined(owned)]
    groups: list[Group] = []
    for keys in coarsened(joined, most):
        held = [product for module in keys for product in owned[module]]
        modules = tuple(name for key in keys for name in labels.get(key, (key,)))
        several = " + ".join(modules[:2]) + (" …" if len(modules) > 2 else "")
        name = modules[0] if len(modules) == 1 else lowest_common(modules) or several
        shapes = tuple(sorted((product.rows, product.columns) for product in held))
        elements = {_weight(product): product.elements for product in held}
        groups.append(Group(name, modules, len(held), sum(elements.values()), shapes))
    together: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
    for group in groups:
        together[group.shapes] += group.elements
    largest = sorted(together, key=lambda shapes: -together[shapes])
    return [replace(group, number=min(largest.index(group.shapes), _MOST_SHAPES - 1)) for group in groups]


def _runs(products: Sequence[Simulated], most: int) -> list[list[Simulated]]:
    """Return products of no module as at most this many runs of neighbours; those without weights follow the others."""
    weighted = [product for product in products if product.elements]
    labels = list(dict.fromkeys(product.node for product in weighted))
    length = -(-len(labels) // most)
    place = {label: at // length for at, label in enumerate(labels)}
    return [[product for product in weighted if place[product.node] == run] for run in sorted(set(place.values()))]


def _weight(product: Simulated) -> str:
    return product.weight or product.node


def _joined(owned: Mapping[str, Sequence[Simulated]]) -> list[tuple[str, ...]]:
    """Return the modules, those that share a weight together."""
    sets: dict[str, tuple[list[str], set[str]]] = {}  # modules and the names of their weights, by the first module
    for module, products in owned.items():
        weights = {_weight(product) for product in products}
        sharing = [first for first, (_, held) in sets.items() if held & weights]
        modules, held = sets.setdefault(sharing[0] if sharing else module, ([], set()))
        for other in sharing[1:]:
            more, theirs = sets.pop(other)
            modules += more
            held |= theirs
        modules.append(module)
        held |= weights
    return [tuple(modules) for modules, _ in sets.values()]


def coarsened(groups: Sequence[tuple[tuple[str, ...], int]], most: int) -> list[tuple[str, ...]]:
    """Join the smallest groups inside one module until there are at most this many, in their first order.

    Args:
        groups: The modules of each group, and its size.
        most: The largest number of groups.
    """
    left = list(groups)
    while len(left) > max(1, most):
        inside: dict[str, list[int]] = defaultdict(list)
        for number, (modules, _) in enumerate(left):
            for module in lineage(lowest_common(modules)):
                inside[module].append(number)
        several = {module: numbers for module, numbers in inside.items() if len(numbers) > 1}
        deepest = max(module.count(".") + bool(module) for module in several)
        best = min(
            (module for module in several if module.count(".") + bool(module) == deepest),
            key=lambda module: sum(left[number][1] for number in several[module]),
        )
        chosen = several[best][: len(left) - most + 1] if best == "" else several[best]
        modules = tuple(module for number in chosen for module in left[number][0])
        left[chosen[0]] = modules, sum(left[number][1] for number in chosen)
        left = [group for number, group in enumerate(left) if number not in chosen[1:]]
    return [modules for modules, _ in left]


class Option(Struct, frozen=True):
    """A precision of a group."""

    precision: Precision
    gain: float  # milliseconds or bytes
    loss: float  # relative L2 of the model in which this group alone is quantized


class _Step(Struct, frozen=True):
    rate: float  # gain for each unit of squared loss
    group: int
    precision: Precision


def sweep(groups: Sequence[Sequence[Option]]) -> list[tuple[Precision | None, ...]]:
    """Return the precisions of all groups along the front, from none quantized (None) to the largest gain."""
    steps = [step for number, options in enumerate(groups) for step in _hull(number, options)]
    steps.sort(key=lambda step: -step.rate)  # stable: the steps of a hull have falling rates and stay in order
    state: list[Precision | None] = [None] * len(groups)
    plans = [tuple(state)]
    for step in steps:
        state[step.group] = step.precision
        plans.append(tuple(state))
    return plans


def _hull(group: int, options: Sequence[Option]) -> list[_Step]:
    """Return the steps from float32 along the upper hull of gain over squared loss."""
    gain, loss, steps = 0.0, 0.0, list[_Step]()
    while better := [option for option in options if option.gain > gain]:
        best = max(better, key=lambda option: (_rate(option, gain, loss), option.gain))
        steps.append(_Step(_rate(best, gain, loss), group, best.precision))
        gain, loss = best.gain, max(loss, best.loss**2)
    return steps


def _rate(option: Option, gain: float, loss: float) -> float:
    more = option.loss**2 - loss
    return (option.gain - gain) / more if more > 0 else math.inf


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each pair of costs whether no other pair is lower in one and not higher in the other."""
    return [not any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in points) for a in points]


SECONDS = 3.0  # of the turns of one measurement; fewer if the result is clear
PATIENT_SECONDS = 15.0  # the same if a model seems to be faster, and it is not clear
BRIEF_SECONDS = 0.8  # the same for models that are not results
_TIMED_TOGETHER_BYTES = 1 << 30  # of constants of the source for each of the models that are timed at once


class Trial(Struct, frozen=True):
    """What was measured of the model of a plan."""

    scores: Scores
    bytes: int  # of constants
    expected_top1: float | None  # of other samples: see `loss`


class Trials:
    """Builds the models of plans; measures their loss on the samples to choose with, and times them by the source.

    Without sizes, they are timed on a sample if there is one. `ranked` are the outputs whose rows are classes.
    """

    def __init__(
        self,
        job: Job,
        selection: Selection,
        answers: Answers,
        ranked: frozenset[str] | None,
        sample: Sample | None,
        sizes: Mapping[str, int],
        *,
        threads: int | None,
        seed: int,
    ) -> None:
        self.job = job
        self._selection = selection
        self._answers, self._ranked = answers, ranked
        self._sample, self._timed_sizes = sample, sizes
        self._threads, self._seed = threads, seed
        self.margin = margin_of(len(answers))  # of numbers within a budget
        self.models = 0  # whose loss was measured
        self.milliseconds: float | None = None  # of the source
        self.sizes: dict[str, int] = {}  # at which models were timed

    def use_best_ranges(self) -> None:
        """Find the static ranges that lose least; all models from now on have them."""
        self.job.use_best_ranges(self._selection, self._answers, self._threads, self._seed)

    def plan(self, precisions: Mapping[Precision, Sequence[Group]], between: Sequence[str] = ()) -> Plan:
        """Return the plan that assigns precisions to groups.

        Args:
            precisions: The groups of each precision.
            between: Modules of no group; they follow those that are in float16, where this saves casts.
        """
        owners: dict[Precision, list[str]] = {
            precision: [module for group in groups for module in group.modules]
            for precision, groups in precisions.items()
            if groups
        }
        if "fp16" in owners:
            owners["fp16"] += between
        return tuple(Assignment(each, self._selection.of_owners(inner)) for each, inner in owners.items())

    def measured(self, plan: Plan, samples: int | None = None) -> tuple[Trial, ir.Model]:
        """Build the model of a plan and measure its loss, on so many samples or all; return both.

        Raises:
            UsageError: No product can be quantized, or the metric fails.
            VerificationFailed: The model has NaN or infinities that the source does not have.
        """
        self.models += 1
        candidate, _ = self.job.quantized(plan)
        measured = measure(Subject(candidate.model), self._answers, self._threads, samples)
        scores = measured.scores(self._seed, self._ranked)
        if scores is None:
            raise UsageError(
                "no output can be compared: all are empty, zero or texts", hint="without a loss, nothing can be chosen"
            )
        size = run_tables.snapshot(candidate.facts).counts.bytes
        return Trial(scores, size, measured.expected_agreement(self._ranked)), candidate.model

    def compared(
        self, models: Mapping[str, ir.Model], seconds: float = SECONDS, reference: ir.Model | None = None
    ) -> dict[str, Comparison]:
        """Time models beside the source, or another model, as many at once as fit into memory."""
        found: dict[str, Comparison] = {}
        at_once, labels = max(1, _TIMED_TOGETHER_BYTES // max(1, self.job.before.bytes)), list(models)
        generated, threads = bool(self._timed_sizes) or self._sample is None, self._threads or 1
        for first in range(0, len(labels), at_once):
            timed = bench(
                {"source": reference or self.job.source}
                | {label: models[label] for label in labels[first : first + at_once]},
                seconds=seconds,
                sizes=self._timed_sizes if generated else None,
                inputs=None if generated else self._sample,
                threads=threads,
                clock="cpu" if threads == 1 else "wall",  # CPU time is steadier beside other processes
                starts=0,
                seed=self._seed,
            ).points[0]
            if reference is None:
                self.milliseconds, self.sizes = 1000 * timed.timings[0].median, timed.sizes
            found |= {each.label: each.against_first for each in timed.timings if each.against_first is not None}
        return found

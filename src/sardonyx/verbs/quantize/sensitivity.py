"""What is measured to choose precisions: the groups of modules, the loss of each alone, and times.

A group is a module that owns products. Modules that share a weight are one group, because the weight is stored twice if
only one of them is quantized. If there are more groups than can be measured, modules are joined within the one that
contains them, the smallest first. Products of no module, as all of a file without tags, are grouped in the order in
which they run: neighbours can stay in integers from one to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.ir.origins import Source
from sardonyx.records.bench import Comparison
from sardonyx.records.provenance import lineage, lowest_common, module_of
from sardonyx.records.quantization import Scores
from sardonyx.verbs.bench.bench import bench
from sardonyx.verbs.optimize import run_tables
from sardonyx.verbs.quantize.loss import Answers, measure
from sardonyx.verbs.quantize.precisions import Assignment, Job, NothingQuantized, Plan, Precision
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
    sizes = {module: sum(_elements(product) for product in held) for module, held in owned.items()}
    joined = _joined(owned)
    merged = coarsened([(modules, sum(sizes[module] for module in modules)) for modules in joined], most)
    groups: list[Group] = []
    for keys in merged:
        held = [product for module in keys for product in owned[module]]
        modules = tuple(name for key in keys for name in labels.get(key, (key,)))
        shapes = tuple(sorted((product.rows, product.columns) for product in held))
        weights = {_weight(product): _elements(product) for product in held}
        name = modules[0] if len(modules) == 1 else _common_name(modules)
        groups.append(Group(name, modules, len(held), sum(weights.values()), shapes))
    return groups


def _runs(products: Sequence[Simulated], most: int) -> list[list[Simulated]]:
    """Return products of no module as at most this many runs of neighbours; those without weights follow the others."""
    weighted = [product for product in products if _elements(product)]
    labels = list(dict.fromkeys(product.node for product in weighted))
    length = -(-len(labels) // most)
    place = {label: at // length for at, label in enumerate(labels)}
    return [[product for product in weighted if place[product.node] == run] for run in sorted(set(place.values()))]


def _elements(product: Simulated) -> int:
    return product.rows * product.columns


def _weight(product: Simulated) -> str:
    return product.weight or product.node


def _common_name(modules: Sequence[str]) -> str:
    """Return the module that contains all of these, or their names if it is the model itself."""
    common = lowest_common(modules)
    return common or " + ".join(modules[:2]) + (" …" if len(modules) > 2 else "")


def _joined(owned: Mapping[str, Sequence[Simulated]]) -> list[tuple[str, ...]]:
    """Return the modules, those that share a weight together."""
    holders: dict[str, int] = {}
    sets: list[list[str]] = []
    for module, products in owned.items():
        weights = {_weight(product) for product in products}
        shared = sorted({holders[weight] for weight in weights if weight in holders})
        number = shared[0] if shared else len(sets)
        if not shared:
            sets.append([])
        for other in shared[1:]:
            sets[number] += sets[other]
            holders.update({weight: number for weight, held in holders.items() if held == other})
            sets[other] = []
        sets[number].append(module)
        holders.update(dict.fromkeys(weights, number))
    return [tuple(modules) for modules in sets if modules]


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
        left = _merge(left, several[best][: len(left) - most + 1] if best == "" else several[best])
    return [modules for modules, _ in left]


def _merge(groups: list[tuple[tuple[str, ...], int]], numbers: Iterable[int]) -> list[tuple[tuple[str, ...], int]]:
    chosen = sorted(numbers)
    modules = tuple(module for number in chosen for module in groups[number][0])
    size = sum(groups[number][1] for number in chosen)
    rest = {number: group for number, group in enumerate(groups) if number not in set(chosen)}
    rest[chosen[0]] = (modules, size)
    return [rest[number] for number in sorted(rest)]


def shape_classes(groups: Sequence[Group]) -> list[int]:
    """Return a number for each group; groups with products of the same shapes have the same."""
    sizes: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
    for group in groups:
        sizes[group.shapes] += group.elements
    largest = sorted(sizes, key=lambda shapes: -sizes[shapes])
    number = {shapes: min(at, _MOST_SHAPES - 1) for at, shapes in enumerate(largest)}
    return [number[group.shapes] for group in groups]


SECONDS = 3.0  # of the turns of one measurement; fewer if the result is clear
PATIENT = 15.0  # the same if a model seems to be faster, and it is not clear
BRIEF = 0.8  # the same for models that are not results


class Timed(Struct, frozen=True):
    """Times of one measurement."""

    milliseconds: float  # of the source
    sizes: dict[str, int]
    comparisons: dict[str, Comparison]  # with the source, by name


class Timer(Struct, frozen=True):
    """The conditions of all measurements."""

    source: Source
    sizes: Mapping[str, int]
    sample: Sample | None  # to run on, if no sizes are given
    threads: int
    seed: int

    def time(self, models: Mapping[str, ir.Model], seconds: float = SECONDS) -> Timed:
        """Time models beside the source."""
        generated = bool(self.sizes) or self.sample is None
        timed = bench(
            {"source": self.source, **models},
            seconds=seconds,
            sizes=self.sizes if generated else None,
            inputs=None if generated else self.sample,
            threads=self.threads,
            clock="cpu" if self.threads == 1 else "wall",  # CPU time is steadier beside other processes
            starts=0,
            seed=self.seed,
        )
        point = timed.points[0]
        others = {each.label: each.against_first for each in point.timings if each.against_first is not None}
        return Timed(1000 * point.timings[0].median, point.sizes, others)


_FEW = 4  # samples for a single group: its loss orders the search, and is not compared with the budget


class Trial(Struct, frozen=True):
    """What was measured of the model of a plan."""

    scores: Scores
    bytes: int  # of constants
    expected_top1: float | None  # of other samples: see `loss`


class Jobs(Struct, frozen=True):
    """Makes the job anew, with what was measured of activations."""

    with_best_ranges: Callable[[], Job]
    with_rows: Callable[[bool], Job]  # whether activations that are quantized at run time have scales for rows


class Trials:
    """Builds the models of plans and measures their loss on the samples to choose with, one at a time."""

    def __init__(
        self,
        job: Job,
        jobs: Jobs,
        selection: Selection,
        answers: Answers,
        ranked: frozenset[str] | None,
        *,
        threads: int | None,
        seed: int,
    ) -> None:
        self.job, self._jobs = job, jobs
        self._selection = selection
        self._answers, self._ranked = answers, ranked
        self._threads, self._seed = threads, seed
        self.models = 0  # whose loss was measured

    def use_best_ranges(self) -> None:
        """Find the static ranges that lose least; all models from now on have them."""
        self.job = self._jobs.with_best_ranges()

    def use_rows(self, by_rows: bool) -> None:
        """Give activations that are quantized at run time a scale for each row, or one, in all models from now on."""
        self.job = self._jobs.with_rows(by_rows)

    def plan(self, precisions: Mapping[Precision, Sequence[Group]], between: Sequence[str] = ()) -> Plan:
        """Return the plan that assigns precisions to groups.

        Args:
            precisions: The groups of each precision.
            between: Modules of no group; they follow those that are in float16, where this saves casts.
        """

        def owners(precision: Precision, groups: Sequence[Group]) -> list[str]:
            inner = [module for group in groups for module in group.modules]
            return [*inner, *between] if precision == "fp16" else inner

        return tuple(
            Assignment(precision, self._selection.of_owners(owners(precision, groups)))
            for precision, groups in precisions.items()
            if groups
        )

    def model(self, plan: Plan) -> ir.Model:
        """Return the model of a plan.

        Raises:
            NothingQuantized: No product can be quantized.
        """
        return self.job.quantized(plan)[0].model

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

    def single(self, group: Group, precision: Precision) -> Trial | str:
        """Measure a group in a precision, with all other modules in float32, or return why there is no number."""
        try:
            return self.measured(self.plan({precision: (group,)}), _FEW)[0]
        except VerificationFailed:
            return "NaN or infinities"
        except NothingQuantized:
            return "no such form"

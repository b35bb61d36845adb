"""How far an optimized model's results are from the original's: over seeds, styles and sizes, class by class.

Each class is run with the passes of its own and of all stricter classes; the runtime's optimizations are off on both
sides, so that what is seen is the passes' doing. What is recommended follows from what was seen by one rule, and is
held against what the proof grants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.records.run import Accuracy
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.runtime import Array, Value
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments.results import several
from sardonyx.verification.tolerance import epsilon, float_difference, is_float, ulp_distance

if TYPE_CHECKING:
    from sardonyx.optimizer.candidates import Candidate
    from sardonyx.verification import Oracle


# How far the elements of one output lie from the reference over many trials: a distribution, not only its worst.
#
# The largest, the mean and the counts are of all elements; the quantiles and the histogram of a large output are of an
# even selection of them.

MOST_KEPT = 50_000  # elements of one trial
EQUAL = None  # the bin of the histogram for elements that are the same
_DISTANCES: tuple[str, ...] = ("abs", "rel", "ulp", "scaled")


class Distances:
    """All distances seen at one output."""

    def __init__(self) -> None:
        self.dtype = ""
        self.trials = self.equal_trials = self.elements = self.equal = 0
        self.pattern: str | None = None  # why a trial is wrong whatever the tolerance
        self._eps = 0.0
        self._kept: dict[str, list[Array]] = {name: [] for name in _DISTANCES}
        self._most = dict.fromkeys(_DISTANCES, 0.0)
        self._sum = dict.fromkeys(_DISTANCES, 0.0)
        self._counted = dict.fromkeys(_DISTANCES, 0)
        self._bins: Counter[int | None] = Counter()

    def see(self, reference: Value, result: Value) -> None:
        """One trial: a tensor, or a sequence of them. What is empty tells nothing."""
        if isinstance(reference, list) and isinstance(result, list):
            for one, other in zip(reference, result, strict=False):
                self.see(one, other)
        elif isinstance(reference, np.ndarray) and isinstance(result, np.ndarray) and reference.size:
            self._see_tensor(reference, result)

    def _see_tensor(self, reference: Array, result: Array) -> None:
        self.dtype = reference.dtype.name
        self.trials += 1
        if reference.shape != result.shape or reference.dtype != result.dtype:
            self.pattern = "another type or shape"
            return
        same = _same(reference, result)
        self.elements += same.size
        self.equal += int(np.count_nonzero(same))
        self.equal_trials += bool(same.all())
        if is_float(reference.dtype):
            self._see_floats(reference, result)

    def _see_floats(self, reference: Array, result: Array) -> None:
        whole = float_difference(reference, result)
        self.pattern = self.pattern or whole.pattern
        self._eps = epsilon(reference.dtype)
        a, b = reference.astype(np.float64).reshape(-1), result.astype(np.float64).reshape(-1)
        finite = np.isfinite(a) & np.isfinite(b)
        ulp, a, b = ulp_distance(reference, result).reshape(-1)[finite], a[finite], b[finite]
        error, size = np.abs(a - b), np.abs(a)
        told = size > 0  # nothing is relative to zero
        scaled = np.divide(error, size + whole.scale, out=np.zeros_like(error), where=error > 0)
        found = {"abs": error, "rel": error[told] / size[told], "ulp": ulp, "scaled": scaled}
        for name, values in found.items():
            self._take(name, values[np.isfinite(values)])

    def _take(self, name: str, values: Array) -> None:
        if not values.size:
            return
        self._most[name] = max(self._most[name], float(values.max()))
        self._sum[name] += float(values.sum())
        self._counted[name] += values.size
        kept = values[:: math.ceil(values.size / MOST_KEPT)]
        self._kept[name].append(kept)
        if name == "scaled":
            apart = kept[kept > 0]
            bins = np.ceil(np.log2(apart / self._eps)).astype(int)
            self._bins.update(bins.tolist())
            self._bins[EQUAL] += kept.size - apart.size

    def told(self) -> dict[str, Any]:
        """As the answer of a cell."""
        return {
            "dtype": self.dtype,
            "trials": self.trials,
            "equal_trials": self.equal_trials,
            "elements": self.elements,
            "equal": self.equal,
            "pattern": self.pattern,
            "eps": self._eps or None,
            **{name: self._summary(name) for name in _DISTANCES},
            "histogram": [[edge, self._bins[edge]] for edge in sorted(self._bins, key=_order)],
        }

    def _summary(self, name: str) -> dict[str, float] | None:
        if not self._kept[name]:
            return None
        middle, high = (float(each) for each in np.quantile(np.concatenate(self._kept[name]), (0.5, 0.99)))
        mean = self._sum[name] / self._counted[name]
        return {"max": self._most[name], "mean": mean, "p50": middle, "p99": high}


def _same(one: Array, other: Array) -> Array:
    """Which elements are equal; NaN is itself."""
    equal = np.asarray(one == other)
    if is_float(one.dtype):
        equal = equal | (np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64)))
    return equal


def _order(edge: int | None) -> float:
    return -math.inf if edge is None else edge


_AFFORDABLE = 8_000_000_000  # flops of one run times the repeats: a large model is asked less often
_FEWEST_TRIALS = 2  # of a very large one
FEW = 10  # trials below which nothing is said of others
MARGIN = 2.0  # what is recommended is the next power of two above so many times the largest difference seen
CLASSES = tuple(Accuracy)  # the strictest first
_MEASURES = ("abs", "rel", "ulp")
_POINTS = ("max", "mean", "p50", "p99")
_RULE = (
    f"Recommended: eps times the next power of two that is at least {MARGIN:g} times the largest difference seen, "
    "relative to the value and the output's scale, as the proof measures it; 0 where all were equal."
)


class Tolerance(Experiment):
    """Distributions of differences, and the tolerance they call for."""

    name = "tolerance"

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for each model: the reference is asked once for all classes."""
        repeats = 12 if asked.thorough else 4
        return (Cell(self.name, subject.name, "classes", {**asked.only("target", "seed"), "repeats": repeats}),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Every class that has a pass that does something here."""
        from sardonyx.optimizer.candidates import RewriteJob
        from sardonyx.optimizer.pipeline import select
        from sardonyx.optimizer.run_tables import loosest
        from sardonyx.studies.experiments.counting import counted
        from sardonyx.verification import Oracle, seeds_from

        target = cell.options["target"]
        repeats, trials = affordable(counted(subject.path)["flops"], cell.options["repeats"])
        starts = (cell.options["seed"] + 4 * number for number in range(repeats))
        oracles = [Oracle(subject.path, seeds=seeds_from(start), trials=trials, threads=1) for start in starts]
        answer: Answer = {}
        for place, accuracy in enumerate(CLASSES):
            passes = tuple(each for each in select(target) if CLASSES.index(each.accuracy) <= place)
            candidate = RewriteJob(subject.path, passes, target, _untold).candidate()
            if place and loosest(candidate.log.events, passes) is not accuracy:
                continue  # no pass of this class did anything: it is the graph of the class before
            answer[str(accuracy)] = _measured(candidate, accuracy, oracles)
        return answer

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """By output, by class, and the histogram that the picture is drawn from."""
        points = tuple(f"{point}_{measure}" for measure in _MEASURES for point in _POINTS)
        return (
            Table(
                "tolerance",
                "Differences by model, class and output",
                ("model", "class", "output", "dtype", "rewrites", "trials", "equal_trials", "elements", "equal_share",
                 *points, "max_scaled", "granted", "passed"),
                tuple(row for each in answers for row in _outputs(each)),
                "Optimized against original, runtime optimizations off on both, on inputs drawn as the proof draws "
                "them. rel is relative to the value, scaled to the value plus the output's median size, ulp counts the "
                "numbers between; granted is what the proof allows of scaled.",
            ),
            _by_class(answers),
            Table(
                "tolerance_spread",
                "How many elements differ by how much",
                ("model", "class", "up_to_times_eps", "elements"),
                tuple(row for each in answers for row in _histogram(each)),
                "Scaled differences in units of the type's eps, in bins that end at powers of two; 0 is equal.",
            ),
        )  # fmt: skip

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """What each class calls for, and whether the proof grants enough and not too much."""
        table = tables["tolerance_by_class"]
        found = [_sentence(dict(zip(table.columns, row, strict=True)), table.name) for row in table.rows]
        seen = {row[0] for row in table.rows}
        unseen = [str(each) for each in CLASSES if str(each) not in seen]
        if unseen and table.rows:
            said = f"No pass of the class {' or '.join(unseen)} did anything: nothing is known of it."
            found.append(Finding(said, table.name, certain=False))
        return found


def affordable(flops: int, repeats: int) -> tuple[int, int | None]:
    """How often a model is asked, and how many trials each time (None: all); counted, so the same on any machine."""
    times = min(repeats, _AFFORDABLE // max(flops, 1))
    return max(times, 1), None if times else _FEWEST_TRIALS


def _measured(candidate: Candidate, accuracy: Accuracy, oracles: Sequence[Oracle]) -> dict[str, Any]:
    """All trials of all oracles on one candidate."""
    from sardonyx.runtime import Session
    from sardonyx.verification.interface import random_outputs
    from sardonyx.verification.subject import Subject as Loaded

    model = candidate.model
    names = [value.name or "" for value in model.graph.outputs]
    seen = {name: Distances() for name in names if name not in random_outputs(model)}
    session = Loaded(model).open(lambda source: Session(source, threads=1))
    verdict = oracles[0].check(model, accuracy)
    granted = {output.name: output.rtol for output in verdict.outputs}
    for oracle in oracles:
        for answer in oracle.answers():
            results = session.run(answer.draw.feeds) if answer.style != "empty" else []
            for name, ours, theirs in zip(names, results, answer.outputs, strict=False):
                if name in seen:
                    seen[name].see(theirs, ours)
    outputs = [{"name": name, "granted": granted.get(name), **each.told()} for name, each in seen.items()]
    return {"rewrites": len(candidate.log.events), "passed": verdict.passed, "outputs": outputs}


def _outputs(each: Answered) -> Iterator[tuple[Entry, ...]]:
    for accuracy, found in each.answer.items():
        for output in found["outputs"]:
            share = output["equal"] / output["elements"] if output["elements"] else None
            points = (_point(output, measure, point) for measure in _MEASURES for point in _POINTS)
            yield (
                each.subject.name, accuracy, output["name"], output["dtype"], found["rewrites"], output["trials"],
                output["equal_trials"], output["elements"], share, *points, _point(output, "scaled", "max"),
                output["granted"], found["passed"],
            )  # fmt: skip


def _point(output: Answer, measure: str, point: str) -> float | None:
    return output[measure][point] if output[measure] is not None else None


def _histogram(each: Answered) -> Iterator[tuple[Entry, ...]]:
    for accuracy, found in each.answer.items():
        bins: dict[float, int] = {}
        for output in found["outputs"]:
            for edge, count in output["histogram"]:
                upper = 0.0 if edge is None else 2.0**edge
                bins[upper] = bins.get(upper, 0) + count
        yield from ((each.subject.name, accuracy, upper, bins[upper]) for upper in sorted(bins))


def _by_class(answers: Sequence[Answered]) -> Table:
    """One row for each class and floating type that was seen."""
    groups: dict[tuple[str, str], list[Answer]] = {}
    for each in answers:
        for accuracy, found in each.answer.items():
            for output in found["outputs"]:
                if output["scaled"] is not None:
                    about = {"model": each.subject.name, "passed": found["passed"]}
                    groups.setdefault((accuracy, output["dtype"]), []).append(output | about)
    order = sorted(groups, key=lambda key: (CLASSES.index(Accuracy(key[0])), key[1]))
    return Table(
        "tolerance_by_class",
        "The tolerance that each class calls for",
        ("class", "dtype", "models", "failed_models", "outputs", "trials", "elements", "equal_share", "max_abs",
         "max_ulp", "max_scaled", "max_scaled_in_eps", "recommended", "recommended_in_eps", "granted_in_eps",
         "beyond_granted"),
        tuple(_class_row(key, groups[key]) for key in order),
        f"{_RULE} Granted: what the proof allows of any model; beyond_granted counts the outputs beyond that, which "
        "the proof allows only of models whose own roundings move them as far.",
    )  # fmt: skip


def _class_row(key: tuple[str, str], outputs: Sequence[Answer]) -> tuple[Entry, ...]:
    accuracy, dtype = key
    eps: float = outputs[0]["eps"]
    elements, equal = (sum(output[name] for output in outputs) for name in ("elements", "equal"))
    most = max(output["scaled"]["max"] for output in outputs)
    allowed, factor = granted_in_eps(Accuracy(accuracy), eps), recommended_in_eps(most / eps)
    trials: dict[str, int] = {}
    for output in outputs:  # all outputs of a model come from the same trials
        trials[output["model"]] = max(trials.get(output["model"], 0), output["trials"])
    failed = {output["model"] for output in outputs if not output["passed"]}
    return (
        accuracy, dtype, len(trials), len(failed), len(outputs), sum(trials.values()),
        elements, equal / elements if elements else None,
        max(output["abs"]["max"] for output in outputs), max(output["ulp"]["max"] for output in outputs),
        most, most / eps, factor * eps, factor, allowed,
        sum(output["scaled"]["max"] > allowed * eps for output in outputs),
    )  # fmt: skip


def recommended_in_eps(most: float) -> float:
    """The next power of two that leaves the margin over the largest difference seen; none where there was none."""
    return 2.0 ** math.ceil(math.log2(MARGIN * most)) if most > 0 else 0.0


def granted_in_eps(accuracy: Accuracy, eps: float) -> float:
    """What the proof allows before it has measured the model's own noise."""
    from sardonyx.verification import tolerance

    if accuracy is Accuracy.EXACT:
        return 0.0
    narrow = eps > 2.0**-23
    usual = tolerance.NARROW_MAX if narrow else tolerance.REASSOCIATED_MAX
    return max(usual, tolerance.APPROXIMATE_MAX / eps) if accuracy is Accuracy.APPROXIMATES else usual


def _sentence(row: dict[str, Entry], table: str) -> Finding:
    """One class and type: what was seen, what it calls for, and against what is granted."""

    def number(name: str) -> float:
        value = row[name]
        return float(value) if isinstance(value, (int, float)) else 0.0

    trials, most = int(number("trials")), number("max_scaled_in_eps")
    head = f"Passes up to the class {row['class']}, {row['dtype']}:"
    seen = f"in {several(trials, 'trial')} on {several(int(number('models')), 'model')}"
    enough = trials >= FEW
    chance = (
        f"at most {3 / trials:.1%} of trials drawn like these go beyond (95 %)" if enough else "too few to say more"
    )
    if number("failed_models"):
        return Finding(f"{head} the proof fails for {several(int(number('failed_models')), 'model')} {seen}.", table)
    if not most:
        return Finding(f"{head} bit for bit equal {seen}; {chance}.", table, certain=enough)
    said = (
        f"{head} differences of up to {most:.3g} eps of value and scale ({number('max_abs'):.1e} absolute) {seen}; "
        f"{chance}. Recommended: {number('recommended'):.1e} ({number('recommended_in_eps'):g} eps)"
    )
    held = _held_against(most, number("recommended_in_eps"), number("granted_in_eps"))
    return Finding(f"{said}; {held}.", table, certain=enough)


def _held_against(most: float, wanted: float, granted: float) -> str:
    """What the proof grants any model, seen from what was measured."""
    if most > granted:
        return f"what was seen is more than the {granted:g} eps that the proof grants any model"
    if wanted > granted:
        return f"the {granted:g} eps that the proof grants hold what was seen, but without that margin"
    return f"the proof grants {granted:g} eps, which is enough"


def _untold(phase: str, fraction: float | None) -> None:
    """Nobody watches a cell from inside."""

"""Differences between optimized and original results over seeds, styles and sizes, for each accuracy class.

Each class runs with its own passes and those of all stricter classes; the runtime's optimizations are off for both
models, so that all differences come from the passes. The recommended tolerance follows from the largest difference and
is compared with the tolerance of the verification.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.fleet.cells import Cell
from sardonyx.records.run import Accuracy
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.runtime import Array, Session, Value
from sardonyx.verbs.optimize.candidates import Candidate
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verbs.optimize.run_tables import loosest
from sardonyx.verbs.study.experiment import (
    Answer,
    Answers,
    Experiment,
    StudyOptions,
    Subject,
    Tables,
    candidate,
    costs,
    several,
)
from sardonyx.verification import Oracle, seeds_from, tolerance
from sardonyx.verification.subject import Subject as LoadedModel
from sardonyx.verification.subject import random_outputs
from sardonyx.verification.tolerance import epsilon, float_difference, is_float, ulp_distance

MAX_SAMPLED = 50_000  # elements of one trial that its quantiles are computed from
EQUAL = None  # the bin of the histogram for equal elements
_DISTANCES: tuple[str, ...] = ("abs", "rel", "ulp", "scaled")


class Distances:
    """The distribution of the differences of one output from the reference, over many trials.

    Maximum, mean and counts are of all elements; the quantiles and the histogram of a large output are of an even
    sample of them.
    """

    def __init__(self) -> None:
        self.dtype = ""
        self.trials = self.equal_trials = self.elements = self.equal = 0
        self.pattern: str | None = None  # why a trial fails with any tolerance
        self._eps = 0.0
        self._samples: dict[str, list[Array]] = {name: [] for name in _DISTANCES}
        self._most = dict.fromkeys(_DISTANCES, 0.0)
        self._sum = dict.fromkeys(_DISTANCES, 0.0)
        self._counted = dict.fromkeys(_DISTANCES, 0)
        self._bins: Counter[int | None] = Counter()

    def add(self, reference: Value, result: Value) -> None:
        """Add one trial: a tensor, or a sequence of them; empty tensors are ignored."""
        if isinstance(reference, list) and isinstance(result, list):
            for one, other in zip(reference, result, strict=False):
                self.add(one, other)
        elif isinstance(reference, np.ndarray) and isinstance(result, np.ndarray) and reference.size:
            self._add_tensor(reference, result)

    def _add_tensor(self, reference: Array, result: Array) -> None:
        self.dtype = reference.dtype.name
        self.trials += 1
        if reference.shape != result.shape or reference.dtype != result.dtype:
            self.pattern = "another type or shape"
            return
        same = (reference == result) | ((reference != reference) & (result != result))  # NaN equals NaN
        self.elements += same.size
        self.equal += int(np.count_nonzero(same))
        self.equal_trials += bool(same.all())
        if is_float(reference.dtype):
            self._add_floats(reference, result)

    def _add_floats(self, reference: Array, result: Array) -> None:
        difference = float_difference(reference, result)
        self.pattern = self.pattern or difference.pattern
        self._eps = epsilon(reference.dtype)
        a, b = reference.astype(np.float64).reshape(-1), result.astype(np.float64).reshape(-1)
        finite = np.isfinite(a) & np.isfinite(b)
        ulp, a, b = ulp_distance(reference, result).reshape(-1)[finite], a[finite], b[finite]
        error, size = np.abs(a - b), np.abs(a)
        nonzero = size > 0
        scaled = np.divide(error, size + difference.scale, out=np.zeros_like(error), where=error > 0)
        distances = {"abs": error, "rel": error[nonzero] / size[nonzero], "ulp": ulp, "scaled": scaled}
        for name, values in distances.items():
            self._add_values(name, values[np.isfinite(values)])

    def _add_values(self, name: str, values: Array) -> None:
        if not values.size:
            return
        self._most[name] = max(self._most[name], float(values.max()))
        self._sum[name] += float(values.sum())
        self._counted[name] += values.size
        sample = values[:: math.ceil(values.size / MAX_SAMPLED)]
        self._samples[name].append(sample)
        if name == "scaled":
            different = sample[sample > 0]
            bins = np.ceil(np.log2(different / self._eps)).astype(int)
            self._bins.update(bins.tolist())
            self._bins[EQUAL] += sample.size - different.size

    def as_json(self) -> dict[str, Any]:
        """Return the distribution as part of an answer."""
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
        if not self._samples[name]:
            return None
        median, high = (float(value) for value in np.quantile(np.concatenate(self._samples[name]), (0.5, 0.99)))
        mean = self._sum[name] / self._counted[name]
        return {"max": self._most[name], "mean": mean, "p50": median, "p99": high}


def _order(edge: int | None) -> float:
    return -math.inf if edge is None else edge


_MAX_REPEATED_FLOPS = 8_000_000_000  # FLOPs of one run times the repeats: a large model is repeated less often
_MIN_TRIALS = 2  # of a very large model
CERTAIN_TRIALS = 10  # trials needed for a certain finding
MARGIN_FACTOR = 2.0  # the recommended tolerance is the next power of two above this multiple of the largest difference
CLASSES = (Accuracy.EXACT, Accuracy.REASSOCIATES, Accuracy.APPROXIMATES)  # of passes, the strictest first
_MEASURES = ("abs", "rel", "ulp")
_POINTS = ("max", "mean", "p50", "p99")


class Tolerance(Experiment):
    """Distributions of differences, and the tolerance they require."""

    name = "tolerance"

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model, so that the reference runs once for all classes."""
        repeats = 12 if options.thorough else 4
        return (Cell(self.name, subject.name, "classes", {**options.only("target", "seed"), "repeats": repeats}),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Measure every class that has a pass which changes the model."""
        target = cell.options["target"]
        repeats, trials = affordable(costs(subject.path)["flops"], cell.options["repeats"])
        starts = (cell.options["seed"] + 4 * number for number in range(repeats))
        oracles = [Oracle(subject.path, seeds=seeds_from(start), trials=trials, threads=1) for start in starts]
        answer: Answer = {}
        for index, accuracy in enumerate(CLASSES):
            passes = tuple(rule for rule in select(target) if CLASSES.index(rule.accuracy) <= index)
            optimized = candidate(subject.path, target, passes)
            if index and loosest(optimized.log.events, passes) is not accuracy:
                continue  # no pass of this class changed anything: the graph is that of the class before
            answer[str(accuracy)] = _measure(optimized, accuracy, oracles)
        return answer

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return the differences by output, by class, and as the histogram of the plot."""
        rows: list[tuple[Entry, ...]] = []
        bins: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
        classes: dict[tuple[str, str], list[Answer]] = defaultdict(list)
        for model, accuracy, result, output in _outputs(answers):
            share = output["equal"] / output["elements"] if output["elements"] else None
            summaries: list[dict[str, float]] = [output[measure] or {} for measure in (*_MEASURES, "scaled")]
            points = (summary.get(point) for summary in summaries[:-1] for point in _POINTS)
            rows.append((
                model, accuracy, output["name"], output["dtype"], result["rewrites"], output["trials"],
                output["equal_trials"], output["elements"], share, *points, summaries[-1].get("max"),
                output["granted"], result["passed"],
            ))  # fmt: skip
            bins[model, accuracy].update({0.0 if edge is None else 2.0**edge: n for edge, n in output["histogram"]})
            if output["scaled"] is not None:
                about = {"model": model, "passed": result["passed"]}
                classes[accuracy, output["dtype"]].append(output | about)
        order = sorted(classes, key=lambda key: (CLASSES.index(Accuracy(key[0])), key[1]))
        return (
            Table(
                "tolerance",
                "Differences by model, class and output",
                ("model", "class", "output", "dtype", "rewrites", "trials", "equal_trials", "elements", "equal_share",
                 *(f"{point}_{measure}" for measure in _MEASURES for point in _POINTS), "max_scaled", "granted",
                 "passed"),
                tuple(rows),
                "Optimized against original, runtime optimizations off for both, on the random inputs of the "
                "verification. rel: relative to the value; scaled: relative to the value plus the output's median "
                "size; ulp: floating-point numbers in between; granted: the tolerance of the verification for scaled.",
            ),
            Table(
                "tolerance_by_class",
                "The tolerance that each class requires",
                ("class", "dtype", "models", "failed_models", "outputs", "trials", "elements", "equal_share",
                 "max_abs", "max_ulp", "max_scaled", "max_scaled_in_eps", "recommended", "recommended_in_eps",
                 "granted_in_eps", "beyond_granted"),
                tuple(_class_row(*key, classes[key]) for key in order),
                f"recommended: eps times the next power of two that is at least {MARGIN_FACTOR:g} times the largest "
                "difference, relative to the value and the output's scale, as the verification measures it; 0 if all "
                "were equal. granted: the tolerance of the verification for any model; beyond_granted: outputs beyond "
                "that, which pass only if the rounding errors of the model itself are as large.",
            ),
            Table(
                "tolerance_spread",
                "How many elements differ by how much",
                ("model", "class", "up_to_times_eps", "elements"),
                tuple((*key, upper, count) for key, counts in bins.items() for upper, count in sorted(counts.items())),
                "Scaled differences in units of the type's eps, in bins that end at powers of two; 0: equal.",
            ),
        )  # fmt: skip

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return the tolerance that each class requires, and whether that of the verification is sufficient."""
        table = tables["tolerance_by_class"]
        findings = [_finding(row, table.name) for row in table.named_rows()]
        measured = {row[0] for row in table.rows}
        missing = [str(accuracy) for accuracy in CLASSES if str(accuracy) not in measured]
        if missing and table.rows:
            text = f"No pass of the class {' or '.join(missing)} changed anything: there are no data about it."
            findings.append(Finding(text, table.name, certain=False))
        return findings


def affordable(flops: int, repeats: int) -> tuple[int, int | None]:
    """Return how often a model is run, and with how many trials (None: all), from its FLOPs alone."""
    times = min(repeats, _MAX_REPEATED_FLOPS // max(flops, 1))
    return max(times, 1), None if times else _MIN_TRIALS


def _measure(optimized: Candidate, accuracy: Accuracy, oracles: Sequence[Oracle]) -> dict[str, Any]:
    """Return the differences of one candidate over all trials of all oracles."""
    model = optimized.model
    names = [value.name or "" for value in model.graph.outputs]
    distances = {name: Distances() for name in names if name not in random_outputs(model)}
    session = LoadedModel(model).open(lambda source: Session(source, threads=1))
    verdict = oracles[0].check(model, accuracy)
    granted = {output.name: output.rtol for output in verdict.outputs}
    for oracle in oracles:
        for answer in oracle.answers():
            results = session.run(answer.inputs.feeds) if answer.style != "empty" else []
            for name, actual, expected in zip(names, results, answer.outputs, strict=False):
                if name in distances:
                    distances[name].add(expected, actual)
    outputs = [{"name": name, "granted": granted.get(name), **output.as_json()} for name, output in distances.items()]
    return {"rewrites": len(optimized.log.events), "passed": verdict.passed, "outputs": outputs}


def _outputs(answers: Answers) -> Iterator[tuple[str, str, Answer, Answer]]:
    """Yield each output of each class of each model, with the result of the class."""
    for answer in answers:
        for accuracy, result in answer.answer.items():
            yield from ((answer.subject.name, accuracy, result, output) for output in result["outputs"])


def _class_row(accuracy: str, dtype: str, outputs: Sequence[Answer]) -> tuple[Entry, ...]:
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
    """Return the next power of two above `MARGIN_FACTOR` times the largest difference, or 0 if there was none."""
    return 2.0 ** math.ceil(math.log2(MARGIN_FACTOR * most)) if most > 0 else 0.0


def granted_in_eps(accuracy: Accuracy, eps: float) -> float:
    """Return the tolerance of the verification before it has measured the rounding errors of the model."""
    if accuracy is Accuracy.EXACT:
        return 0.0
    narrow = eps > 2.0**-23
    usual = tolerance.NARROW_MAX if narrow else tolerance.REASSOCIATED_MAX
    return max(usual, tolerance.APPROXIMATE_MAX / eps) if accuracy is Accuracy.APPROXIMATES else usual


def _finding(row: dict[str, Entry], table: str) -> Finding:
    """Return the largest difference of one class and type, and the tolerance that it requires."""
    numbers = {name: value if isinstance(value, (int, float)) else 0 for name, value in row.items()}
    trials, most, failed = int(numbers["trials"]), numbers["max_scaled_in_eps"], int(numbers["failed_models"])
    recommended, granted = numbers["recommended_in_eps"], numbers["granted_in_eps"]
    head = f"Passes up to the class {row['class']}, {row['dtype']}:"
    scope = f"in {several(trials, 'trial')} on {several(int(numbers['models']), 'model')}"
    enough = trials >= CERTAIN_TRIALS
    chance = f"at most {3 / trials:.1%} of such trials differ more (95 %)" if enough else "too few trials to be certain"
    if failed:
        return Finding(f"{head} the verification fails for {several(failed, 'model')} {scope}.", table)
    if not most:
        return Finding(f"{head} bit-identical {scope}; {chance}.", table, certain=enough)
    if most > granted:
        compared = f"the largest difference is above the {granted:g} eps that the verification allows any model"
    elif recommended > granted:
        compared = f"the {granted:g} eps that the verification allows cover it, but without that margin"
    else:
        compared = f"the verification allows {granted:g} eps, which is enough"
    text = (
        f"{head} differences of up to {most:.3g} eps of value and scale ({numbers['max_abs']:.1e} absolute) {scope}; "
        f"{chance}. Recommended: {numbers['recommended']:.1e} ({recommended:g} eps); {compared}."
    )
    return Finding(text, table, certain=enough)

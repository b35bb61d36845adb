"""How far an optimized model's results are from the original's: over seeds, styles and sizes, class by class.

Each class is run with the passes of its own and of all stricter classes; the runtime's optimizations are off on both
sides, so that what is seen is the passes' doing. What is recommended follows from what was seen by one rule, and is
held against what the proof grants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.record import Accuracy
from sardonyx.study_record import Entry, Finding, Table
from sardonyx.studying.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studying.experiments.saying import several

if TYPE_CHECKING:
    from sardonyx.candidates import Candidate
    from sardonyx.proof import Oracle

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
        from sardonyx.candidates import Job
        from sardonyx.ledger import loosest
        from sardonyx.pipeline import select
        from sardonyx.proof import Oracle, seeds_from
        from sardonyx.studying.experiments.counting import counted

        target = cell.options["target"]
        repeats, trials = affordable(counted(subject.path)["flops"], cell.options["repeats"])
        starts = (cell.options["seed"] + 4 * number for number in range(repeats))
        oracles = [Oracle(subject.path, seeds=seeds_from(start), trials=trials, threads=1) for start in starts]
        answer: Answer = {}
        for place, accuracy in enumerate(CLASSES):
            passes = tuple(each for each in select(target) if CLASSES.index(each.accuracy) <= place)
            candidate = Job(subject.path, passes, target, _untold).candidate()
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
    from sardonyx.proof.interface import random_outputs
    from sardonyx.proof.subject import Subject as Loaded
    from sardonyx.runtime import Session
    from sardonyx.studying.experiments.distances import Distances

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
    from sardonyx.proof import tolerance

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

"""Decides whether two models are the same function, by running both on the same drawn inputs.

The reference is the first model with every runtime optimization off. What it accepts and answers is the truth; the
other model must have the same interface and give the same answers within the tolerance of `proof/tolerance.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.proof import noise
from sardonyx.proof.answers import Answer, has_nan, nan_where_reference, says_nothing
from sardonyx.proof.inputs import EMPTY, Draw, Inputs, Plan
from sardonyx.proof.interface import interface_changes, random_outputs
from sardonyx.proof.judge import Judge, Noise
from sardonyx.proof.noise import disturbed
from sardonyx.proof.precision import SinglePrecision
from sardonyx.proof.rounding import LiveEngine, rounded_anew
from sardonyx.proof.subject import Model, Subject
from sardonyx.record import Accuracy, Trial, Verdict
from sardonyx.runtime import Engine, ReferenceSession, Session, Value, open_engine
from sardonyx.source.inputs.specs import read_arrays

if TYPE_CHECKING:
    import onnx_ir as ir

DEFAULT_SEEDS = (0, 1, 2, 3)
Given: TypeAlias = "str | Path | Mapping[str, Value] | Sequence[Mapping[str, Value]] | None"
Progress: TypeAlias = Callable[[str], None]


def verify(
    a: Model,
    b: Model,
    *,
    accuracy: Accuracy = Accuracy.REASSOCIATES,
    inputs: Given = None,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    trials: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Whether `b` is the same function as `a`, how that was tried, and how far apart the answers were.

    Args:
        a: The reference: a path, a ModelProto or an onnx_ir Model.
        b: The model to judge.
        accuracy: The loosest class of the rewrites that led from `a` to `b`.
        inputs: Inputs to use beside the drawn ones: the path of an .npz file, a dict, or a list of dicts.
        seeds: Seeds of the drawn inputs, one for each trial in turn.
        trials: At most this many drawn trials; all of the default list if None.
        threads: Threads of the runtime.
        progress: Told in one line what is being done.
    """
    oracle = Oracle(a, inputs=inputs, seeds=seeds, trials=trials, threads=threads, progress=progress)
    return oracle.check(b, accuracy)


def seeds_from(seed: int) -> tuple[int, ...]:
    """The seeds of a verification that a user starts with one number."""
    return tuple(seed + step for step in range(len(DEFAULT_SEEDS)))


class Oracle:
    """A reference whose answers are computed once and held against any number of candidates."""

    def __init__(
        self,
        reference: Model,
        *,
        inputs: Given = None,
        seeds: Sequence[int] = DEFAULT_SEEDS,
        trials: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        engine: LiveEngine | None = None,
    ) -> None:
        """All as in `verify`; an `engine` answers in place of the reference: the module it was exported from."""
        if not seeds:
            raise UsageError("verification needs at least one seed")
        self._subject = Subject(reference)
        self._inputs = Inputs(self._subject.model)
        self._given = _given_feeds(inputs, self._inputs)
        plans = self._inputs.plans(seeds)
        self._plans = [plan for plan in plans if engine is None or not plan.empty][:trials]
        self._exact_plans = self._inputs.exact_plans(seeds)
        self._exact_answers: list[Answer] | None = None
        self._way = 0
        self._threads = threads
        self._progress: Progress = progress or (lambda _: None)
        self._random = random_outputs(self._subject.model)
        self._answers: list[Answer] | None = None
        self._noise: dict[int, Noise | None] = {}
        self._probe: Engine | None = None
        self._probed = False
        self._notes: list[str] = []
        self._precise: SinglePrecision | None = None
        self._live = engine
        self._engine: Engine | None = None

    @property
    def inputs(self) -> Inputs:
        """How the inputs of the reference are drawn."""
        return self._inputs

    def answers(self) -> list[Answer]:
        """What the reference takes and says to it; the user's inputs first, then the drawn ones."""
        return list(self._reference_answers())

    def check(self, candidate: Model, accuracy: Accuracy = Accuracy.REASSOCIATES) -> Verdict:
        """Judge a candidate against the reference."""
        began = time.perf_counter()
        every = self._reference_answers() + (self._more_answers() if accuracy is Accuracy.EXACT else [])
        subject = Subject(candidate)
        failures = interface_changes(self._subject.model, subject.model)
        names = [v.name or "" for v in self._subject.model.graph.outputs]
        judge = Judge(names, accuracy, self._random, exported=self._live is not None)
        trials: list[Trial] = []
        engine, refusal = self._open_like_reference(subject)
        if engine is None:
            failures.append(refusal)
        elif _feedable(self._subject.model, subject.model):
            for number, answer in enumerate(every):
                self._progress(f"trial {number + 1} of {len(every)}: {answer.style}")
                trials.append(self._try(engine, judge, number, answer))
        failures.extend(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        if engine is not None and not failures and judge.inexact and accuracy is not Accuracy.EXACT:
            failures.extend(self._in_single_precision(subject, engine, judge, every))
        return Verdict(
            passed=not failures,
            reference=self.name,
            accuracy=accuracy,
            trials=tuple(trials),
            outputs=judge.outputs(),
            failures=tuple(failures),
            notes=tuple(self._notes + judge.notes),
            seconds=time.perf_counter() - began,
        )

    def _in_single_precision(
        self, subject: Subject, engine: Engine, judge: Judge, answers: Sequence[Answer]
    ) -> list[str]:
        """What two models of half precision differ by when both compute in single precision."""
        answer = next((a for a in answers if a.style != EMPTY), None)
        if answer is None or self._live is not None:
            return []
        if self._precise is None:
            self._precise = SinglePrecision(
                self._subject.model, lambda model: self._open_like_reference(Subject(model))[0]
            )
        results = engine.run(answer.draw.feeds)
        lines = self._precise.check(subject.model, judge, answer.draw.feeds, answer.outputs, results)
        return [f"{answer.style}, seed {answer.seed}, in single precision: {line}" for line in lines]

    def _try(self, engine: Engine, judge: Judge, number: int, answer: Answer) -> Trial:
        try:
            results = engine.run(answer.draw.feeds)
            if self._inputs.masked:
                results = nan_where_reference(answer.outputs, results)
            lines = judge.compare(answer.outputs, results, lambda: self._noise_of(number))
        except RuntimeFailure as failure:
            lines = [f"the reference runs but the other model does not: {failure.message}"]
            if answer.style == EMPTY:  # some fused kernels want at least one of everything: worth telling, not undoing
                judge.notes.append("takes no empty batch any more, which the reference did")
                lines = []
        return Trial(answer.seed, answer.draw.dims, answer.style, not lines, tuple(lines))

    @property
    def notes(self) -> list[str]:
        """What the answers do not cover."""
        return list(self._notes)

    @property
    def name(self) -> str:
        """Which engine runs the reference."""
        return self._engine.name if self._engine is not None else "none"

    def _reference_answers(self) -> list[Answer]:
        """The reference's answers, from ONNX Runtime, or from onnx.reference where the runtime answers nothing."""
        if self._answers is None:
            self._progress("running the reference")
            self._engine = self._live or self._subject.open(lambda source: open_engine(source, threads=self._threads))
            answers, reasons = self._ask(self._engine)
            if not answers and isinstance(self._engine, Session):
                self._engine = self._subject.open(ReferenceSession)
                answers, more = self._ask(self._engine)
                reasons += more
            if not answers:
                raise RuntimeFailure(
                    f"the model accepts none of the drawn inputs: {reasons[0] if reasons else 'none were drawn'}",
                    hint="give inputs that it accepts with --inputs x.npz",
                )
            self._answers = answers
            self._notes += self._coverage(answers)
        return self._answers

    def _ask(self, engine: Engine) -> tuple[list[Answer], list[str]]:
        answers: list[Answer] = []
        reasons: list[str] = []
        for feeds in self._given:
            try:
                answers.append(Answer(None, "given", Draw(dict(feeds), {}), engine.run(feeds)))
            except RuntimeFailure as failure:
                raise UsageError(f"the model does not accept the given inputs: {failure.message}") from failure
        self._way = 0
        for plan in self._plans:
            answer = self._first_accepted(engine, plan, reasons)
            if answer is not None:
                answers.append(answer)
        return answers, reasons

    def _more_answers(self) -> list[Answer]:
        """The reference's answers to what only bit-exact rewrites are tried on."""
        if self._exact_answers is None and self._engine is not None:
            found = [self._first_accepted(self._engine, plan, []) for plan in self._exact_plans]
            self._exact_answers = [answer for answer in found if answer is not None]
        return self._exact_answers or []

    def _first_accepted(self, engine: Engine, plan: Plan, reasons: list[str]) -> Answer | None:
        """The plan drawn in the first way the reference accepts, starting with the way that last worked."""
        last = self._way + 1 if plan.optional else self._inputs.ways
        for way in range(self._way, last):
            try:
                draw = self._inputs.draw(plan, way, engine.run)
                outputs = engine.run(draw.feeds)
            except RuntimeFailure as failure:
                reasons.append(failure.message)
                continue
            if plan.optional and self._inputs.contradicts(draw, outputs):
                continue
            self._way = way
            return Answer(plan.seed, plan.label, draw, outputs)
        return None

    def _coverage(self, answers: list[Answer]) -> list[str]:
        """Say which dynamic dims were seen at fewer than two sizes, and which outputs cannot be compared by value."""
        notes = self._inputs.coverage([answer.draw for answer in answers])
        if self._inputs.masked and any(has_nan(answer.outputs) for answer in answers):
            notes.append("the reference answers NaN where nothing is attended to: not compared there")
        unequal = "depends on random numbers: only its type and shape were compared"
        notes += [f"the output '{name}' {unequal}" for name in sorted(self._random)]
        for place, value in enumerate(self._subject.model.graph.outputs):
            if says_nothing([answer.outputs[place] for answer in answers]):
                notes.append(f"the output '{value.name}' is one and the same number everywhere: it proves little")
        return notes

    def _open_like_reference(self, subject: Subject) -> tuple[Engine | None, str]:
        def load(source: Subject.Source) -> Engine:
            if isinstance(self._engine, ReferenceSession):
                return ReferenceSession(source)
            return Session(source, threads=self._threads)

        try:
            return subject.open(load), ""
        except RuntimeFailure as failure:
            return None, f"the reference loads but the other model does not: {failure.message}"

    def _noise_of(self, number: int) -> Noise | None:
        """What rounding alone makes of the answers to one trial, or None where that cannot be run."""
        if number not in self._noise:
            answer = self._reference_answers()[number]
            if not self._probed:
                self._progress("measuring how much rounding alone moves the reference")
                copy = disturbed(self._subject.model)
                self._probe = self._open_like_reference(Subject(copy))[0] if copy is not None else None
                self._probed = True
            self._noise[number] = self._first_noise(self._probe, answer) if self._probe is not None else None
        return self._noise[number]

    def _first_noise(self, probe: Engine, answer: Answer) -> Noise | None:
        feeds = answer.draw.feeds

        def disturb(draw: int) -> Sequence[Value]:
            return probe.run({**feeds, **noise.draw(draw)})

        try:
            disturb(0)
        except RuntimeFailure:  # an operator without a kernel for the probe's types: no noise is known
            return None
        plain = self._open_like_reference(self._subject)[0] if self._live is not None else None
        if plain is None or self._live is None:
            return Noise(answer.outputs, disturb)
        clean = plain.run(feeds)  # what the probe disturbs is the graph's own answer, not the module's
        anew = rounded_anew(clean, answer.outputs, self._live.run_in_double(feeds))
        return Noise(clean, lambda draw: disturb(draw) if draw else anew)


def _feedable(a: ir.Model, b: ir.Model) -> bool:
    """Whether the inputs of `a` can be fed to `b` and its outputs be matched by place."""
    return {v.name for v in a.graph.inputs} == {v.name for v in b.graph.inputs} and len(a.graph.outputs) == len(
        b.graph.outputs
    )


def _given_feeds(given: Given, inputs: Inputs) -> list[Mapping[str, Value]]:
    """The user's inputs as feeds, each checked to name every input that has no default."""
    if given is None:
        return []
    if isinstance(given, (str, Path)):
        feeds: list[Mapping[str, Value]] = [dict(read_arrays(Path(given)))]
    else:
        feeds = [given] if isinstance(given, Mapping) else list(given)
    for one in feeds:
        missing = [name for name in inputs.required if name not in one]
        if missing:
            raise UsageError(f"the given inputs lack '{missing[0]}'", hint=f"needed: {', '.join(inputs.required)}")
    return feeds

"""Decides whether two models are the same function, by running both on the same inputs.

The reference is the first model with every runtime optimization off. What it accepts and answers is the truth; the
other model must have the same interface and give the same answers within the tolerance of `verification/tolerance.py`.
Models run in a worker process, one at a time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.ir import io
from sardonyx.records.input_specs import read_arrays
from sardonyx.records.run import Accuracy, RuntimeCheck, Trial, Verdict
from sardonyx.runtime import Choice, Feeds, Value
from sardonyx.runtime.engines import Runtime
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification import noise
from sardonyx.verification.budget import SECONDS
from sardonyx.verification.half_precision_models import SinglePrecision
from sardonyx.verification.inputs import Inputs
from sardonyx.verification.interface import interface_changes
from sardonyx.verification.judge import Judge, Noise
from sardonyx.verification.padding import Padding, hidden_positions, unseeing
from sardonyx.verification.reference import Answer, Progress, Reference
from sardonyx.verification.rounding import LiveEngine, in_double, narrowed, rounded_anew, shuffled, widened
from sardonyx.verification.second_runtime import OtherRuntime, Result
from sardonyx.verification.subject import Model, Subject
from sardonyx.verification.ties import Ties, with_scores

if TYPE_CHECKING:
    import onnx_ir as ir

DEFAULT_SEEDS = (0, 1, 2, 3)
Given: TypeAlias = "str | Path | Mapping[str, Value] | Sequence[Mapping[str, Value]] | None"
_MOST_DOUBLED = 1 << 28  # bytes of weights up to which a graph is computed in double precision
_SLOWER = 20.0  # a candidate that takes this many times as long as the reference, and a minute, does not end


def verify(
    a: Model,
    b: Model,
    *,
    accuracy: Accuracy = Accuracy.REASSOCIATES,
    inputs: Given = None,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    trials: int | None = None,
    seconds: float = SECONDS,
    runtimes: Sequence[Runtime | str] = (Runtime.ORT,),
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Whether `b` is the same function as `a`, how that was tried, and how far apart the answers were.

    Args:
        a: The reference: a path, a ModelProto or an onnx_ir Model.
        b: The model to judge.
        accuracy: The loosest class of the rewrites that led from `a` to `b`.
        inputs: Inputs to use beside the generated ones: the path of an .npz file, a dict, or a list of dicts.
        seeds: Seeds of the generated inputs, one for each trial in turn.
        trials: At most this many generated trials; all of the default list if None.
        seconds: About how long the runs may take, ten of them in any case; the verdict names what was left out.
        runtimes: "ort", "reference" or "openvino": the first runs the trials, with "reference" in its place where it
            does not take the model; the others run both models on the same inputs.
        threads: Threads of the runtime.
        progress: Told in one line what is being done.
    """
    oracle = Oracle(
        a,
        inputs=inputs,
        seeds=seeds,
        trials=trials,
        seconds=seconds,
        runtimes=runtimes,
        threads=threads,
        progress=progress,
    )
    return oracle.check(b, accuracy)


def seeds_from(seed: int) -> tuple[int, ...]:
    """The seeds of a verification that a user starts with one number."""
    return tuple(seed + step for step in range(len(DEFAULT_SEEDS)))


class Oracle:
    """A reference whose answers are computed once and compared with those of any number of candidates."""

    def __init__(
        self,
        reference: Model,
        *,
        inputs: Given = None,
        seeds: Sequence[int] = DEFAULT_SEEDS,
        trials: int | None = None,
        seconds: float = SECONDS,
        runtimes: Sequence[Runtime | str] = (Runtime.ORT,),
        threads: int | None = None,
        progress: Progress | None = None,
        engine: LiveEngine | None = None,
        rounded: Collection[str] = (),
        own_types: bool = False,
    ) -> None:
        """All as in `verify`, and how an exported graph is compared with its module.

        Args:
            engine: Answers in place of the reference: the module it was exported from.
            rounded: Constants of a narrow type that the engine has with more digits; each is cast before use.
            own_types: Never compute in float32 what the models compute in a narrower type.
        """
        if not seeds:
            raise UsageError("verification needs at least one seed")
        first, *others = _known(runtimes)
        self._progress: Progress = progress or (lambda _: None)
        self._threads = threads
        self._reference = Reference(
            reference,
            given=_given_feeds(inputs),
            seeds=seeds,
            trials=trials,
            runtime=first,
            threads=threads,
            seconds=seconds,
            progress=self._progress,
            live=engine,
            own_types=own_types,
        )
        self._model = reference
        self._clean: dict[int, Result] = {}  # what the reference's own graph answers, where a live module is right
        self._noise: dict[int, Noise | None] = {}
        self._rounded = rounded
        self._probe: RemoteSession | None = None
        self._precise = SinglePrecision(self._reference.subject.model, lambda model: self._open(Subject(model)))
        self._further, self._seconds = others, seconds
        self._can_double = True  # until a graph could not be run in double precision

    @property
    def inputs(self) -> Inputs:
        """How the inputs of the reference are generated."""
        return self._reference.inputs

    @property
    def not_covered(self) -> list[str]:
        """What the answers do not cover."""
        return list(self._reference.not_covered)

    @property
    def name(self) -> str:
        """Which engine runs the reference."""
        return self._reference.name

    def answers(self) -> list[Answer]:
        """What the reference takes and says to it; the user's inputs first, then the generated ones."""
        return list(self._reference.answers())

    def check(self, candidate: Model, accuracy: Accuracy = Accuracy.REASSOCIATES) -> Verdict:
        """Judge a candidate against the reference."""
        began = time.perf_counter()
        reference = self._reference
        answers = self.answers() + (reference.special_answers() if accuracy is Accuracy.EXACT else [])
        is_itself = reference.live is not None and candidate is self._model
        subject = reference.subject if is_itself else Subject(candidate)
        failures = interface_changes(reference.subject.model, subject.model)
        names = [value.name or "" for value in reference.subject.model.graph.outputs]
        judge = Judge(names, accuracy, reference.random, exported=reference.live is not None)
        trials: list[Trial] = []
        results: list[Result] = []
        if _feedable(reference.subject.model, subject.model):
            try:
                results = self._results(reference.as_run(subject), answers)
                self._clean = dict(enumerate(results)) if is_itself else {}
            except RuntimeFailure as failure:
                failures.append(f"the reference loads but the other model does not: {failure.message}")
            else:
                pairs = zip(answers, results, strict=True)
                trials = [self._judged(judge, subject, number, *pair) for number, pair in enumerate(pairs)]
        failures.extend(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        if trials and not failures and judge.inexact and accuracy is not Accuracy.EXACT:
            failures += self._in_single_precision(subject, judge, answers, results)
        runtimes = self._across(subject, answers, accuracy) if trials else []
        failures += [f"in {each.runtime}: {line}" for each in runtimes for line in each.from_rewrite]
        if self._probe is not None:
            self._probe.close()  # it opens itself again for the next candidate that needs it
        not_covered = judge.left_out.lines + reference.not_covered
        missing = reference.without_kernel
        how = [f"both sides computed in float32: ONNX Runtime has no CPU kernel for {missing} in their own types"]
        return Verdict(
            passed=not failures,
            reference=self.name,
            accuracy=accuracy,
            trials=tuple(trials),
            outputs=judge.outputs(),
            failures=tuple(failures),
            notes=tuple(dict.fromkeys((how if missing else []) + not_covered + judge.notes)),
            not_covered=tuple(not_covered),
            runtimes=tuple(runtimes),
            seconds=time.perf_counter() - began,
            computed_in="float32" if missing else None,
        )

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """What a candidate says to every trial, or how it fails."""
        results: list[Result] = []
        with self._open(subject) as engine:
            for number, answer in enumerate(answers):
                self._progress(f"trial {number + 1} of {len(answers)}: {answer.style}")
                engine.seconds = max(_SLOWER * answer.seconds, self._reference.longest_run)
                try:
                    results.append(engine.run(answer.draw.feeds))
                except RuntimeFailure as failure:
                    results.append(failure)
        return results

    def _judged(self, judge: Judge, subject: Subject, number: int, answer: Answer, result: Result) -> Trial:
        if isinstance(result, RuntimeFailure):
            lines = [f"the reference runs but the other model does not: {result.message}"]
            empty = [name for name, size in answer.draw.dims.items() if size == 0]
            if empty:  # some fused kernels want at least one of everything: worth telling, not undoing
                judge.notes.append(f"no longer accepts {', '.join(f'{name} = 0' for name in empty)}")
                lines = []
        else:
            lines = judge.compare(
                answer.outputs,
                result,
                lambda: self._noise_for(subject, number, answer, result),
                hides_rows=self.inputs.masked,
                padding=self._padding_of(answer),
                ties=self._ties(subject, answer.draw.feeds),
                exact=functools.cache(lambda: self._in_double(subject, answer)),
            )
        return Trial(answer.seed, answer.draw.dims, answer.style, not lines, tuple(lines))

    def _padding_of(self, answer: Answer) -> list[Padding | None]:
        """The positions of each output at which a live module's answer comes from attention to nothing."""
        live, feeds = self._reference.live, answer.draw.feeds
        hidden = hidden_positions(feeds[name] for name in self.inputs.masks) if live is not None else []
        disturbed = live.run_unattended(feeds) if live is not None and hidden else None
        return unseeing(answer.outputs, disturbed[0], hidden, disturbed[1]) if disturbed is not None else []

    def _choices_of(self, subject: Subject, feeds: Feeds) -> list[Choice]:
        """What a model chooses by score in one trial, as far as its outputs hold the indices."""
        scored = with_scores(subject.model)
        if scored is None:
            return []
        with self._open(self._reference.as_run(Subject(scored.model))) as engine:
            return scored.choices(engine.run(feeds))

    def _ties(self, candidate: Subject, feeds: Feeds) -> Ties:
        live, reference = self._reference.live, self._reference.subject
        return Ties(
            lambda: live.choices(feeds) if live is not None else self._choices_of(reference, feeds),
            lambda: self._choices_of(candidate, feeds),
            lambda: shuffled(live, feeds) if live is not None else [],
        )

    def _in_double(self, subject: Subject, answer: Answer) -> tuple[list[Value], list[Value]] | None:
        """The outputs of a live module and of its graph, both computed in double precision; None if one cannot be.

        Kernels of two programs may round more differently than the noise of the graph shows (a transform, a long sum).
        In double precision nothing of that is left, and a wrong graph is as wrong as before.
        """
        live, feeds = self._reference.live, answer.draw.feeds
        if live is None or not self._can_double or subject.constant_bytes > _MOST_DOUBLED:
            return None
        self._progress("comparing in double precision")
        right = live.run_in_double(feeds)
        if right is None or len(right) != len(answer.outputs):
            return None
        try:
            with Subject(in_double(io.to_proto(subject.model))).any_session(threads=self._threads) as engine:
                engine.seconds = self._reference.longest_run
                result = engine.run({name: widened(value) for name, value in feeds.items()})
        except RuntimeFailure:  # an operator without a kernel for doubles, or too slow: nothing more is known
            self._can_double = False
            return None
        given = answer.outputs
        return [*map(narrowed, right, given)], [*map(narrowed, result, given)]

    def _in_single_precision(
        self, subject: Subject, judge: Judge, answers: Sequence[Answer], results: Sequence[Result]
    ) -> list[str]:
        """What two models of half precision differ by when both compute in single precision."""
        if self._reference.live is not None or self._reference.without_kernel is not None:
            return []
        for answer, result in zip(answers, results, strict=True):
            if isinstance(result, RuntimeFailure) or answer.hides_row or 0 in answer.draw.dims.values():
                continue
            lines = self._precise.check(subject.model, judge, answer.draw.feeds, answer.outputs, result)
            return [f"{answer.style}, seed {answer.seed}, in single precision: {line}" for line in lines]
        return []

    def _across(self, subject: Subject, answers: Sequence[Answer], accuracy: Accuracy) -> list[RuntimeCheck]:
        """The same in the further runtimes."""
        names = [value.name or "" for value in self._reference.subject.model.graph.outputs]
        # They fuse in ways of their own, so that even bit-exact rewrites may lead to other roundings.
        loosest = Accuracy.REASSOCIATES if accuracy is Accuracy.EXACT else accuracy
        checks: list[RuntimeCheck] = []
        subject = self._reference.as_run(subject)
        for other in self._others:
            self._progress("running both models in another runtime")
            checks.append(
                other.check(
                    subject,
                    answers,
                    lambda: Judge(names, loosest, self._reference.random),
                    lambda number: self._noise_of(number, answers[number]),
                )
            )
        return checks

    @functools.cached_property
    def _others(self) -> list[OtherRuntime]:
        """The further runtimes, in the types that the reference answered in."""
        right = self._reference.as_run(self._reference.subject)
        return [OtherRuntime(each, right, threads=self._threads, seconds=self._seconds) for each in self._further]

    def _open(self, subject: Subject) -> RemoteSession:
        """A model in the runtime that runs the reference."""
        reference = self._reference
        return subject.session(reference.runtime, threads=self._threads, seconds=reference.longest_run)

    def _opened_probe(self) -> RemoteSession | None:
        self._progress("measuring how much rounding alone moves the reference")
        model = self._reference.as_run(self._reference.subject).model
        copy = noise.disturbed(model, stored=self._rounded)
        if copy is not None:
            self._probe = self._open(Subject(copy))
        return self._probe

    def _noise_for(self, candidate: Subject, number: int, answer: Answer, result: Sequence[Value]) -> Noise | None:
        """What rounding alone may change: in the reference, or in float32 in the candidate and its new constants."""
        if self._reference.without_kernel is None or not self._precise.new_constants(candidate.model):
            return self._noise_of(number, answer)
        wide = self._reference.as_run(candidate).model
        return self._precise.noise(wide, candidate.model, answer.draw.feeds, result)

    def _noise_of(self, number: int, answer: Answer) -> Noise | None:
        """What rounding alone makes of the answers to one trial, or None where that cannot be run."""
        if number not in self._noise:
            self._noise[number] = self._first_noise(number, answer)
        return self._noise[number]

    def _first_noise(self, number: int, answer: Answer) -> Noise | None:
        feeds = answer.draw.feeds
        try:
            probe = self._probe or self._opened_probe()
            if probe is None:
                return None
            first = probe.run({**feeds, **noise.draw(0)})
        except RuntimeFailure:  # an operator without a kernel for the probe's types: no noise is known
            return None

        def disturb(draw: int) -> Sequence[Value]:
            return probe.run({**feeds, **noise.draw(draw)}) if draw else first

        live = self._reference.live
        if live is None:
            return Noise(answer.outputs, disturb)
        clean = self._clean.get(number)  # what the probe disturbs is the graph's own answer, not the module's
        if clean is None or isinstance(clean, RuntimeFailure):
            with self._open(self._reference.subject) as plain:
                clean = plain.run(feeds)
        anew = rounded_anew(clean, answer.outputs, live.run_in_double(feeds))
        return Noise(clean, lambda draw: disturb(draw) if draw else anew)


def _known(runtimes: Sequence[Runtime | str]) -> list[Runtime]:
    try:
        return [Runtime(each) for each in dict.fromkeys(runtimes)] or [Runtime.ORT]
    except ValueError as error:
        known = ", ".join(each.value for each in Runtime)
        raise UsageError(f"there is no runtime {error.args[0].split(' is not')[0]}", hint=f"known: {known}") from error


def _feedable(a: ir.Model, b: ir.Model) -> bool:
    """Whether the inputs of `a` can be fed to `b` and its outputs be matched by place."""
    return {v.name for v in a.graph.inputs} == {v.name for v in b.graph.inputs} and len(a.graph.outputs) == len(
        b.graph.outputs
    )


def _given_feeds(given: Given) -> list[Mapping[str, Value]]:
    if given is None:
        return []
    if isinstance(given, (str, Path)):
        return [dict(read_arrays(Path(given)))]
    return [given] if isinstance(given, Mapping) else list(given)

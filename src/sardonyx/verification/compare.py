"""Decide whether two models compute the same function, by running both on the same inputs.

The reference is the first model with every runtime optimization off. Inputs that it accepts are trials, and its
outputs are right by definition; the other model must have the same interface and give the same outputs within the
tolerance of `tolerance`. Models run in a worker process, one at a time; both can also be compared in further
runtimes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from sardonyx.common.errors import RuntimeFailure, UsageError
from sardonyx.inputs.generator import ExampleInputs, Inputs, read_examples
from sardonyx.records.run import Accuracy, RequestedTolerance, RuntimeCheck, Trial, Verdict
from sardonyx.runtime import Choice, Feeds, Value
from sardonyx.runtime.remote import RemoteSession, RuntimeTimeout
from sardonyx.runtime.sessions import Runtime, parse_runtimes
from sardonyx.verification.exclusions import (
    LiveEngine,
    Padding,
    Ties,
    hidden_positions,
    keyless_padding,
    nearby,
    shuffled,
    with_scores,
)
from sardonyx.verification.output_comparison import OutputComparer, Outputs, Precise, Tolerance
from sardonyx.verification.reference import SECONDS, Answer, Progress, Reference, work_of
from sardonyx.verification.subject import Model, Subject, interface_changes
from sardonyx.verification.upcast import narrow_types, new_constants

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.verification.double_precision import DoublePrecision

DEFAULT_SEEDS = (0, 1, 2, 3)
_CANDIDATE_SLOWDOWN = 20.0  # times the time of the reference, and a minute, after which a run is stopped


def verify(
    a: Model,
    b: Model,
    *,
    accuracy: Accuracy = Accuracy.REASSOCIATES,
    rtol: float | None = None,
    atol: float | None = None,
    inputs: ExampleInputs = None,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    trials: int | None = None,
    seconds: float = SECONDS,
    runtimes: Sequence[Runtime | str] = (Runtime.ORT,),
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Return whether `b` computes the same function as `a`, on which trials, and how far apart the outputs were.

    Args:
        a: The reference: a path, a ModelProto or an onnx_ir Model.
        b: The model to compare with it.
        accuracy: The loosest class of the rewrites that led from `a` to `b`.
        rtol: Also compare within |a - b| ≤ atol + rtol · |a|; the result is `requested` of the verdict. 0 if only
            `atol` is given.
        atol: The absolute part of that tolerance; 0 if only `rtol` is given.
        inputs: Inputs to use beside the generated ones: the path of an .npz file, a dict, or a list of dicts.
        seeds: Seeds of the generated inputs, one for each trial in turn.
        trials: The largest number of generated trials; None runs the whole default list.
        seconds: About how long the runs of each model may take, counted in operations, so that a busy machine runs the
            same trials. Two trials run in any case; the verdict names those left out.
        runtimes: "ort", "reference" or "openvino". The first runs the trials, replaced by "reference" if it does not
            accept the model; the others run both models on the same inputs.
        threads: Threads of the runtime.
        progress: Called with one line about the current step.
    """
    tolerance = Tolerance.of(rtol, atol)
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
    return oracle.check(b, accuracy, tolerance)


def seeds_from(seed: int) -> tuple[int, ...]:
    """Return the seeds of a verification for one number given by the user."""
    return tuple(seed + step for step in range(len(DEFAULT_SEEDS)))


class Oracle:
    """A reference whose outputs are computed once and compared with those of any number of candidates."""

    def __init__(
        self,
        reference: Model,
        *,
        inputs: ExampleInputs = None,
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
        """Take the arguments of `verify`, and those for comparing an exported graph with its module.

        Args:
            engine: The module that the reference was exported from; its outputs count in place of the graph's.
            rounded: Names of constants stored in a narrow type that the engine holds in a wider one; each is cast
                before use.
            own_types: Never compute in float32 what the models compute in a narrower type.
        """
        if not seeds:
            raise UsageError("verification needs at least one seed")
        first, *others = parse_runtimes(runtimes)
        self._progress: Progress = progress or (lambda _: None)
        self._threads = threads
        self._reference = Reference(
            reference,
            examples=read_examples(inputs),
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
        self._rounded = rounded
        self._exact: dict[int, list[Value] | None] = {}  # outputs of the reference in double precision, by trial
        self._further, self._seconds = others, seconds

    @property
    def inputs(self) -> Inputs:
        """The generator of the reference's inputs."""
        return self._reference.inputs

    @property
    def not_covered(self) -> list[str]:
        """What the trials do not cover, one line each."""
        return list(self._reference.not_covered)

    @property
    def name(self) -> str:
        """The engine that runs the reference."""
        return self._reference.name

    def leave_out_values(self) -> None:
        """Run fewer trials: the candidates are known to compute the same function for all values."""
        self._reference.leave_out_values()

    def answers(self) -> list[Answer]:
        """Return the accepted inputs with the reference's outputs; the user's inputs first, then the generated ones."""
        return list(self._reference.answers())

    def check(
        self,
        candidate: Model,
        accuracy: Accuracy = Accuracy.REASSOCIATES,
        tolerance: Tolerance | None = None,
        failed: Verdict | None = None,
        *,
        proven: bool = False,
    ) -> Verdict:
        """Compare a candidate with the reference, also within a requested tolerance if one is given.

        If a verdict is given that `failed`, only the trials that failed in it are run, if any did. If all rewrites are
        `proven` to be equal, only kernels can differ: their roundings may, and a candidate passes if it is as close to
        the reference in double precision as the reference itself.

        Raises:
            UsageError: The class has no tolerance: a quantized model differs on purpose.
        """
        began = time.perf_counter()
        if accuracy is Accuracy.QUANTIZES:
            raise UsageError(
                "a quantized model is not compared within a tolerance",
                hint="its loss is measured by `sardonyx quantize`",
            )
        reference = self._reference
        answers = self.answers() + (reference.special_answers() if accuracy is Accuracy.EXACT else [])
        trials = failed.trials if failed is not None else ()
        wrong = [(trial.seed, trial.style, trial.dims) for trial in trials if not trial.passed]
        keys = [(answer.seed, answer.style, answer.inputs.dims) for answer in answers]
        numbers = [number for number, key in enumerate(keys) if key in wrong] or range(len(answers))
        answers = [answers[number] for number in numbers]
        subject = reference.subject if candidate is self._model else Subject(candidate)
        failures = interface_changes(reference.subject.model, subject.model)
        names = [value.name or "" for value in reference.subject.model.graph.outputs]
        exported = reference.live is not None
        comparer = OutputComparer(names, accuracy, reference.random, exported=exported, proven=proven)
        trials = list[Trial]()
        results: list[Result] = []
        double = self._in_double(subject)
        late = 0  # trials that were stopped: they may be slow on a busy machine, and say nothing
        if _feedable(reference.subject.model, subject.model):
            try:
                results = self._results(reference.as_run(subject), answers)
            except RuntimeFailure as failure:
                failures.append(f"the reference loads but the other model does not: {failure.message}")
            else:
                runs = zip(numbers, answers, results, strict=True)
                ended = [each for each in runs if not isinstance(each[2], RuntimeTimeout)]
                strict = self._strict_trial(ended) if self._hides_weights and not proven else None
                trials = [self._compare_trial(comparer, subject, double, *each, strict == each[0]) for each in ended]
                late = len(results) - len(trials)
                if late and not trials:
                    failures.append("no trial of the other model ended in time, so that nothing was compared")
        requested = self._requested(tolerance, names, failures, answers, results)
        failures.extend(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        runtimes = self._across(subject, answers, accuracy) if trials else []
        failures += [f"in {other.runtime}: {line}" for other in runtimes for line in other.from_rewrite]
        for each in (double, self._exact_reference):
            each.close()
        not_covered = comparer.left_out.lines + reference.not_covered
        if late:
            not_covered.append(f"{late} of {len(results)} trials of the other model did not end in time")
        missing = reference.without_kernel
        how = [f"both sides computed in float32: ONNX Runtime has no CPU kernel for {missing} in their own types"]
        return Verdict(
            passed=not failures,
            reference=self.name,
            accuracy=accuracy,
            trials=tuple(trials),
            outputs=comparer.outputs(),
            failures=tuple(failures),
            notes=tuple(dict.fromkeys((how if missing else []) + not_covered + comparer.notes)),
            not_covered=tuple(not_covered),
            runtimes=tuple(runtimes),
            seconds=time.perf_counter() - began,
            computed_in="float32" if missing else None,
            requested=requested,
        )

    def _requested(
        self,
        tolerance: Tolerance | None,
        names: Sequence[str],
        failures: Sequence[str],
        answers: Sequence[Answer],
        results: Sequence[Result],
    ) -> RequestedTolerance | None:
        """Compare all trials within a requested tolerance; what failed before the first trial counts too."""
        if tolerance is None:
            return None
        lines = list(failures)
        for answer, result in zip(answers, results, strict=False):  # there are no results of a model that does not load
            where = f"{answer.style}, seed {answer.seed}"
            if not isinstance(result, RuntimeFailure):
                outside = tolerance.failures(names, answer.outputs, result, self._reference.random)
                lines += [f"{where}: {line}" for line in outside]
            elif 0 not in answer.inputs.dims.values():
                lines.append(f"{where}: the reference runs but the other model does not: {result.message}")
        return RequestedTolerance(tolerance.rtol, tolerance.atol, not lines, tuple(lines))

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """Return the outputs or the failure of a candidate for every trial."""
        results: list[Result] = []
        with self._open(subject) as engine:
            for number, answer in enumerate(answers):
                self._progress(f"trial {number + 1} of {len(answers)}: {answer.style}")
                engine.seconds = max(_CANDIDATE_SLOWDOWN * answer.seconds, self._reference.longest_run)
                try:
                    results.append(engine.run(answer.inputs.feeds))
                except RuntimeFailure as failure:
                    results.append(failure)
        return results

    def _strict_trial(self, runs: Sequence[tuple[int, Answer, Result]]) -> int | None:
        """Return the number of the trial that is compared in double precision in any case: the first usual one."""
        usual = (
            number for number, answer, result in runs if answer.is_usual and not isinstance(result, RuntimeFailure)
        )
        return next(usual, None)

    def _compare_trial(
        self,
        comparer: OutputComparer,
        subject: Subject,
        double: DoublePrecision,
        number: int,
        answer: Answer,
        result: Result,
        strict: bool,
    ) -> Trial:
        if isinstance(result, RuntimeFailure):
            lines = [f"the reference runs but the other model does not: {result.message}"]
            empty = [name for name, size in answer.inputs.dims.items() if size == 0]
            if empty:  # some fused kernels reject empty tensors: worth a note, not a failure
                comparer.notes.append(f"no longer accepts {', '.join(f'{name} = 0' for name in empty)}")
                lines = []
        else:
            lines = comparer.compare(
                answer.outputs,
                result,
                functools.cache(lambda: self._precise(number, answer, None if comparer.proven else (double, result))),
                hides_rows=self.inputs.masked,
                padding=self._padding_of(answer),
                ties=self._ties(subject, answer.inputs.feeds),
                strict=strict,
            )
        return Trial(answer.seed, answer.inputs.dims, answer.style, not lines, tuple(lines))

    def _padding_of(self, answer: Answer) -> list[Padding | None]:
        """Return per output the positions at which a live module attends to no key."""
        live, feeds = self._reference.live, answer.inputs.feeds
        hidden = hidden_positions(feeds[name] for name in self.inputs.masks) if live is not None else []
        disturbed = live.run_unattended(feeds) if live is not None and hidden else None
        return keyless_padding(answer.outputs, disturbed[0], hidden, disturbed[1]) if disturbed is not None else []

    def _choices_of(self, subject: Subject, feeds: Feeds) -> list[Choice]:
        """Return what a model chooses by score in one trial, as far as the indices are among its outputs."""
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

    def _precise(
        self, number: int, answer: Answer, candidate: tuple[DoublePrecision, Outputs] | None
    ) -> Precise | None:
        """Run the reference in double precision, and a candidate if only the difference of both functions is asked for.

        If a live module does not run in it, the rounding error of its graph is the measure of rounding.
        """
        self._progress("comparing in double precision")
        exact, feeds = self._exact_outputs(number, answer), answer.inputs.feeds
        live = self._reference.live is not None
        double, result = candidate or (None, ())

        @functools.cache
        def other() -> list[Value] | None:
            return double.run(feeds) if double is not None and (exact is not None or live) else None

        if exact is None and other() is None:
            return None

        def roundings() -> Iterator[tuple[Outputs, Outputs]]:
            """Yield the error of the reference, or of a live module's graph, and that of storing weights."""
            hides = self._hides_weights and candidate is not None
            if exact is not None and not hides:
                yield answer.outputs, exact
            if double is None or (run := other()) is None:
                return
            if exact is None and not hides:
                yield result, run
            yield from double.roundings(feeds, run)

        return Precise(exact, other, roundings, lambda: self._nearby(feeds))

    def _nearby(self, feeds: Feeds) -> Iterator[Outputs]:
        """Yield the outputs of the reference for inputs whose floats differ by a unit in the last place."""
        changed = list(nearby(feeds))
        if not changed or self._reference.live is not None:
            return
        with self._open(self._reference.as_run(self._reference.subject)) as engine:
            for each in changed:
                yield engine.run(each)

    def _exact_outputs(self, number: int, answer: Answer) -> list[Value] | None:
        """Return the outputs of the reference in double precision in one trial, computed once."""
        if number not in self._exact:
            live, feeds = self._reference.live, answer.inputs.feeds
            outputs = self._exact_reference.run(feeds) if live is None else live.run_in_double(feeds)
            is_whole = outputs is not None and len(outputs) == len(answer.outputs)
            self._exact[number] = outputs if is_whole else None
        return self._exact[number]

    @functools.cached_property
    def _hides_weights(self) -> bool:
        """Whether the reference computes in half precision, where rounding is as large as the error of a weight."""
        return self._reference.live is None and bool(narrow_types(self._reference.subject.model))

    @functools.cached_property
    def _exact_reference(self) -> DoublePrecision:
        from sardonyx.verification.double_precision import DoublePrecision  # loaded where results differ

        return DoublePrecision(self._reference.as_run(self._reference.subject).model, threads=self._threads)

    def _in_double(self, candidate: Subject) -> DoublePrecision:
        """Return a candidate in double precision."""
        from sardonyx.verification.double_precision import DoublePrecision

        if self._reference.live is not None:
            return DoublePrecision(candidate.model, constants="widen", rounded=self._rounded, threads=self._threads)
        new = new_constants(candidate.model, self._reference.subject.model) if self._hides_weights else ()
        return DoublePrecision(self._reference.as_run(candidate).model, rounded=new, threads=self._threads)

    def _across(self, subject: Subject, answers: Sequence[Answer], accuracy: Accuracy) -> list[RuntimeCheck]:
        """Compare the models in the further runtimes."""
        names = [value.name or "" for value in self._reference.subject.model.graph.outputs]
        # Each runtime has its own fusions, so that even bit-exact rewrites may change its roundings.
        loosest = Accuracy.REASSOCIATES if accuracy is Accuracy.EXACT else accuracy
        checks: list[RuntimeCheck] = []
        subject = self._reference.as_run(subject)
        for other in self._others:
            self._progress("running both models in another runtime")
            checks.append(
                other.check(
                    subject,
                    answers,
                    lambda: OutputComparer(names, loosest, self._reference.random),
                    lambda number: self._precise(number, answers[number], None),
                )
            )
        return checks

    @functools.cached_property
    def _others(self) -> list[OtherRuntime]:
        """The further runtimes; they compute in the types that the reference was run in."""
        subject = self._reference.as_run(self._reference.subject)
        return [OtherRuntime(name, subject, threads=self._threads, seconds=self._seconds) for name in self._further]

    def _open(self, subject: Subject) -> RemoteSession:
        """Open a model in the runtime that runs the reference."""
        reference = self._reference
        return subject.session(reference.runtime, threads=self._threads, seconds=reference.longest_run)


def _feedable(a: ir.Model, b: ir.Model) -> bool:
    """Return whether the inputs of `a` can be fed to `b` and their outputs be matched by position."""
    return {v.name for v in a.graph.inputs} == {v.name for v in b.graph.inputs} and len(a.graph.outputs) == len(
        b.graph.outputs
    )


Result = list[Value] | RuntimeFailure


class OtherRuntime:
    """A further runtime to compare the models in; the reference is run in it once.

    Args:
        runtime: The runtime.
        reference: The reference model.
        threads: Threads of the runtime.
        seconds: About how long all runs of one model may take, counted in operations.
    """

    def __init__(self, runtime: Runtime, reference: Subject, *, threads: int | None, seconds: float) -> None:
        self._runtime = runtime
        self._reference = reference
        self._threads = threads
        self._seconds = seconds
        self._name = runtime.value
        self._own: list[Result] | None = None

    def check(
        self,
        candidate: Subject,
        answers: Sequence[Answer],
        comparer: Callable[[], OutputComparer],
        precise: Callable[[int], Precise | None],
    ) -> RuntimeCheck:
        """Compare reference and candidate on the trials that the first runtime ran.

        Args:
            candidate: The model to compare.
            answers: The reference's outputs in the first runtime.
            comparer: Returns an `OutputComparer` without results.
            precise: Returns the outputs of the reference in double precision in the trial with this number.
        """
        if self._own is None:
            self._own = self._results(self._reference, answers)
        theirs = self._results(candidate, answers[: len(self._own)])
        rewrite: list[str] = []
        runtime: list[str] = []
        failed: list[str] = []
        compared = 0
        for number, (answer, own, other) in enumerate(zip(answers, self._own, theirs, strict=False)):
            place = f"{answer.style}, seed {answer.seed}"
            if isinstance(own, RuntimeFailure):
                failed.append(own.message)
                continue
            known = lambda number=number: precise(number)  # noqa: E731 (bound to this trial)
            differences = comparer().compare(answer.outputs, own, known)
            if differences:
                runtime += [f"{place}: {line}" for line in differences]
            elif isinstance(other, RuntimeFailure):
                rewrite.append(f"{place}: it runs the reference but not the other model: {other.message}")
            else:
                compared += 1
                rewrite += [f"{place}: {line}" for line in comparer().compare(own, other, known)]
        left = len(answers) - len(theirs)
        reason = failed[0] if failed else f"{left} trials did not fit the budget for work" if left else ""
        return RuntimeCheck(self._name, compared, tuple(rewrite), tuple(runtime), reason)

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """Run as many trials as the budget allows; a model that does not load fails in all of them."""
        results, work = list[Result](), 0
        try:
            with subject.session(self._runtime, threads=self._threads, seconds=3 * self._seconds) as engine:
                self._name = engine.name
                for answer in answers:
                    work += answer.work
                    if results and work > work_of(self._seconds, self._runtime):
                        break
                    try:
                        results.append(engine.run(answer.inputs.feeds))
                    except RuntimeFailure as failure:
                        results.append(failure)
        except RuntimeFailure as failure:
            return [failure] * len(answers)
        return results

"""Decide whether two models compute the same function, by running both on the same inputs.

The reference is the first model with every runtime optimization off. Inputs that it accepts are trials, and its
outputs are right by definition; the other model must have the same interface and give the same outputs within the
tolerance of `tolerance`. Models run in a worker process, one at a time; both can also be compared in further
runtimes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.inputs.generator import ExampleInputs
from sardonyx.ir import io
from sardonyx.records.run import Accuracy, RequestedTolerance, RuntimeCheck, Trial, Verdict
from sardonyx.runtime import Choice, Engine, Feeds, Value
from sardonyx.runtime.remote import RuntimeTimeout
from sardonyx.runtime.sessions import Runtime
from sardonyx.verification.exclusions import Padding, Ties, hidden_positions, keyless_padding, shuffled, with_scores
from sardonyx.verification.output_comparison import OutputComparer, Outputs, Precise, Tolerance
from sardonyx.verification.reference import DEFAULT_SEEDS, SECONDS, Answer, Progress, Reference, Result, work_of
from sardonyx.verification.subject import Model, Subject, interface_changes
from sardonyx.verification.upcast import new_constants

if TYPE_CHECKING:
    from sardonyx.verification.double_precision import DoublePrecision

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


class Oracle(Reference):
    """A reference whose outputs are computed once and compared with those of any number of candidates."""

    copies: io.Copies | None = None  # of the tensors of the last candidate that was run

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
        answers = self.answers() + (self.special_answers() if accuracy is Accuracy.EXACT else [])
        trials = failed.trials if failed is not None else ()
        wrong = [(trial.seed, trial.style, trial.dims) for trial in trials if not trial.passed]
        keys = [(answer.seed, answer.style, answer.inputs.dims) for answer in answers]
        numbers = [number for number, key in enumerate(keys) if key in wrong] or range(len(answers))
        answers = [answers[number] for number in numbers]
        subject = self.subject if candidate is self.source else Subject(candidate)
        one, other = self.subject.model.graph, subject.model.graph
        failures = interface_changes(self.subject.model, subject.model)
        comparer = self._comparer(accuracy, exported=self.live is not None, proven=proven)
        trials = list[Trial]()
        results: list[Result] = []
        double = self._in_double(subject)
        late = 0  # trials that were stopped: they may be slow on a busy machine, and say nothing
        if {v.name for v in one.inputs} == {v.name for v in other.inputs} and len(one.outputs) == len(other.outputs):
            try:
                results = self._results(self.as_run(subject), answers)
                self.copies = subject.copies
            except RuntimeFailure as failure:
                failures.append(f"the reference loads but the other model does not: {failure.message}")
            else:
                runs = zip(numbers, answers, results, strict=True)
                ended = [each for each in runs if not isinstance(each[2], RuntimeTimeout)]
                usual = (n for n, answer, result in ended if answer.is_usual and not isinstance(result, RuntimeFailure))
                strict = next(usual, None) if self.hides_weights and not proven else None
                trials = [self._compare_trial(comparer, subject, double, *each, strict == each[0]) for each in ended]
                late = len(results) - len(trials)
                if late and not trials:
                    failures.append("no trial of the other model ended in time, so that nothing was compared")
        requested = self._requested(tolerance, failures, answers, results)
        failures.extend(f"{trial.style}, seed {trial.seed}: {line}" for trial in trials for line in trial.failures)
        runtimes = self._across(subject, numbers, answers, accuracy) if trials else []
        failures += [f"in {other.runtime}: {line}" for other in runtimes for line in other.from_rewrite]
        for each in (double, self.double):
            each.close()
        not_covered = comparer.left_out + self.not_covered
        if late:
            not_covered.append(f"{late} of {len(results)} trials of the other model did not end in time")
        return Verdict(
            passed=not failures,
            reference=self.name,
            accuracy=accuracy,
            trials=tuple(trials),
            outputs=comparer.outputs(),
            failures=tuple(failures),
            notes=tuple(dict.fromkeys(self.how + not_covered + comparer.notes)),
            not_covered=tuple(not_covered),
            runtimes=tuple(runtimes),
            seconds=time.perf_counter() - began,
            computed_in="float32" if self.without_kernel is not None else None,
            requested=requested,
        )

    def _comparer(self, accuracy: Accuracy, *, exported: bool = False, proven: bool = False) -> OutputComparer:
        return OutputComparer(self.output_names, accuracy, self.random, exported=exported, proven=proven)

    def _requested(
        self, tolerance: Tolerance | None, failures: Sequence[str], answers: Sequence[Answer], results: Sequence[Result]
    ) -> RequestedTolerance | None:
        """Compare all trials within a requested tolerance; what failed before the first trial counts too."""
        if tolerance is None:
            return None
        lines = list(failures)
        for answer, result in zip(answers, results, strict=False):  # there are no results of a model that does not load
            if not isinstance(result, RuntimeFailure):
                outside = tolerance.failures(self.output_names, answer.outputs, result, self.random)
                lines += [f"{answer.place}: {line}" for line in outside]
            elif 0 not in answer.inputs.dims.values():
                lines.append(f"{answer.place}: the reference runs but the other model does not: {result.message}")
        return RequestedTolerance(tolerance.rtol, tolerance.atol, not lines, tuple(lines))

    def _results(self, subject: Subject, answers: Sequence[Answer]) -> list[Result]:
        """Return the outputs or the failure of a candidate for every trial."""
        results: list[Result] = []
        with self.open(subject) as engine:
            for number, answer in enumerate(answers):
                self.progress(f"trial {number + 1} of {len(answers)}: {answer.style}")
                engine.seconds = max(_CANDIDATE_SLOWDOWN * answer.seconds, self.budget.longest_run)
                results.append(_attempted(engine, answer))
        return results

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
        if not isinstance(result, RuntimeFailure):
            live, feeds = self.live, answer.inputs.feeds
            other = None if comparer.proven else (double, result)
            lines = comparer.compare(
                answer.outputs,
                result,
                functools.cache(lambda: self._precise(number, answer, other)),
                hides_rows=bool(self.inputs.masks),
                padding=self._padding_of(answer),
                ties=Ties(
                    lambda: live.choices(feeds) if live is not None else self._choices_of(self.subject, feeds),
                    lambda: self._choices_of(subject, feeds),
                    lambda: shuffled(live, feeds) if live is not None else [],
                ),
                strict=strict,
            )
        elif empty := [name for name, size in answer.inputs.dims.items() if size == 0]:
            # Some fused kernels reject empty tensors: worth a note, not a failure.
            comparer.notes.append(f"no longer accepts {', '.join(f'{name} = 0' for name in empty)}")
            lines = []
        else:
            lines = [f"the reference runs but the other model does not: {result.message}"]
        return Trial(answer.seed, answer.inputs.dims, answer.style, not lines, tuple(lines))

    def _padding_of(self, answer: Answer) -> list[Padding | None]:
        """Return per output the positions at which a live module attends to no key."""
        live, feeds = self.live, answer.inputs.feeds
        hidden = hidden_positions(feeds[name] for name in self.inputs.masks) if live is not None else []
        disturbed = live.run_unattended(feeds) if live is not None and hidden else None
        return keyless_padding(answer.outputs, disturbed[0], hidden, disturbed[1]) if disturbed is not None else []

    def _choices_of(self, subject: Subject, feeds: Feeds) -> list[Choice]:
        """Return what a model chooses by score in one trial, as far as the indices are among its outputs."""
        scored = with_scores(subject.model)
        if scored is None:
            return []
        with self.open(self.as_run(Subject(scored.model))) as engine:
            return scored.choices(engine.run(feeds))

    def _precise(self, number: int, answer: Answer, other: tuple[DoublePrecision, Outputs] | None) -> Precise | None:
        """Run the reference in double precision, and a candidate if only the difference of both functions is asked for.

        If a live module does not run in it, the rounding error of its graph is the measure of rounding.
        """
        self.progress("comparing in double precision")
        exact, feeds = self.in_double(number, answer), answer.inputs.feeds
        double, result = other or (None, ())

        @functools.cache
        def other_exact() -> list[Value] | None:
            return double.run(feeds) if double is not None and (exact is not None or self.live is not None) else None

        if exact is None and other_exact() is None:
            return None

        def roundings() -> Iterator[tuple[Outputs, Outputs]]:
            """Yield the error of the reference, or of a live module's graph, and that of storing weights."""
            hides = self.hides_weights and double is not None
            if exact is not None and not hides:
                yield answer.outputs, exact
            if double is None or (run := other_exact()) is None:
                return
            if exact is None and not hides:
                yield result, run
            yield from double.roundings(feeds, run)

        return Precise(exact, other_exact, roundings, lambda: self.nearby(feeds))

    def _in_double(self, candidate: Subject) -> DoublePrecision:
        """Return a candidate in double precision."""
        from sardonyx.verification.double_precision import DoublePrecision

        if self.live is not None:
            return DoublePrecision(candidate.model, constants="widen", rounded=self.rounded, threads=self.threads)
        new = new_constants(candidate.model, self.subject.model) if self.hides_weights else ()
        return DoublePrecision(self.as_run(candidate).model, rounded=new, threads=self.threads)

    def _across(
        self, candidate: Subject, numbers: Sequence[int], answers: Sequence[Answer], accuracy: Accuracy
    ) -> list[RuntimeCheck]:
        """Compare the models on the trials in the further runtimes, in the types that the reference was run in."""
        # Each runtime has its own fusions, so that even bit-exact rewrites may change its roundings.
        loosest = Accuracy.REASSOCIATES if accuracy is Accuracy.EXACT else accuracy
        checks: list[RuntimeCheck] = []
        for runtime in self.further:
            self.progress("running both models in another runtime")
            key = (runtime, tuple(numbers))
            if key not in self.elsewhere:
                self.elsewhere[key] = self._run_in(runtime, self.subject, answers)
            name, own = self.elsewhere[key]
            theirs = self._run_in(runtime, candidate, answers[: len(own)])[1]
            rewrite, different, failed, compared = list[str](), list[str](), list[str](), 0
            for number, answer, a, b in zip(numbers, answers, own, theirs, strict=False):
                if isinstance(a, RuntimeFailure):
                    failed.append(a.message)
                    continue
                known = functools.partial(self._precise, number, answer, None)
                if lines := self._comparer(loosest).compare(answer.outputs, a, known):
                    different += [f"{answer.place}: {line}" for line in lines]
                elif isinstance(b, RuntimeFailure):
                    rewrite.append(f"{answer.place}: it runs the reference but not the other model: {b.message}")
                else:
                    compared += 1
                    rewrite += [f"{answer.place}: {line}" for line in self._comparer(loosest).compare(a, b, known)]
            left = len(answers) - len(theirs)
            reason = failed[0] if failed else f"{left} trials did not fit the budget for work" if left else ""
            checks.append(RuntimeCheck(name, compared, tuple(rewrite), tuple(different), reason))
        return checks

    def _run_in(self, runtime: Runtime, subject: Subject, answers: Sequence[Answer]) -> tuple[str, list[Result]]:
        """Run as many trials as the budget allows in a runtime; a model that does not load fails in all of them."""
        results, work, seconds = list[Result](), 0, self.budget.seconds
        try:
            with self.as_run(subject).session(runtime, threads=self.threads, seconds=3 * seconds) as engine:
                for answer in answers:
                    work += answer.work
                    if results and work > work_of(seconds, runtime):
                        break
                    results.append(_attempted(engine, answer))
                return engine.name, results
        except RuntimeFailure as failure:
            return runtime.value, [failure] * len(answers)


def _attempted(engine: Engine, answer: Answer) -> Result:
    try:
        return engine.run(answer.inputs.feeds)
    except RuntimeFailure as failure:
        return failure

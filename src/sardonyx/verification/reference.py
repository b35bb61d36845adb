"""Run the reference model on the trials.

Its outputs are right by definition. An input that it rejects, or that crashes or stalls its process, is not a trial.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct

from sardonyx.errors import RuntimeFailure, UsageError, VerificationFailed
from sardonyx.inputs.generator import ExampleInputs, Inputs, TrialInputs, TrialPlan, read_examples
from sardonyx.ir.facts import Facts
from sardonyx.ir.metadata import outside_limits
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Engine, Feeds, Value
from sardonyx.runtime.library import NoKernel
from sardonyx.runtime.load_failures import LOAD_A_LIBRARY, explain
from sardonyx.runtime.remote import RemoteSession, RuntimeCrash, RuntimeTimeout
from sardonyx.runtime.sessions import Runtime, parse_runtimes
from sardonyx.verification.coverage import Bodies, Comparisons
from sardonyx.verification.exclusions import nearby
from sardonyx.verification.output_comparison import OutputComparer
from sardonyx.verification.subject import Model, Subject, random_outputs
from sardonyx.verification.upcast import narrow_types, upcast

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.engine import TorchEngine
    from sardonyx.verification.double_precision import DoublePrecision

DEFAULT_SEEDS = (0, 1, 2, 3)
SECONDS = 20.0  # of work for the trials of one model, unless the user gives another number
_WORK_OF_A_SECOND = 1 << 33  # operations; a nominal speed, so that no verdict depends on that of the machine
_EVALUATOR_SLOWDOWN = 32  # of the reference evaluator
_TIMEOUT_FACTOR = 3.0  # a run that takes this many times the budget is stopped
_MIN_TRIALS = 2  # trials, however much work or memory they are
_KEPT_BYTES = 1 << 28  # of inputs and outputs, which are kept until the end
_ALWAYS_KEPT_BYTES = 1 << 20  # of a trial that is always kept
_ALWAYS_USED_BYTES = 1 << 30  # no trial is skipped for using less memory than this


def work_of(seconds: float, runtime: Runtime) -> float:
    """Return the number of operations that count as this many seconds in a runtime."""
    return seconds * _WORK_OF_A_SECOND / (_EVALUATOR_SLOWDOWN if runtime is Runtime.REFERENCE else 1)


class Budget(Struct):
    """Work and memory used by the runs of the reference so far; the candidate is expected to use as much.

    Time is counted in operations, not measured: a busy machine runs the same trials. All trials together have at most
    2³³ operations for each second, and 256 MB of inputs and outputs, which are kept until the end; the first two trials
    and, for the bytes, small ones are not limited. The memory of a trial, extrapolated from the largest one so far by
    the number of input elements, must be at most 1 GB or twice that of the smallest one.
    """

    seconds: float = SECONDS
    runtime: Runtime = Runtime.ORT
    weights: int = 0  # bytes that every run needs, whatever its size
    trials: int = 0
    kept: int = 0  # bytes of the inputs and outputs so far
    work: int = 0  # operations so far
    _largest: int = 0  # input elements of the largest trial; smaller ones say nothing about growth
    _fewest: int | None = None  # input elements of the smallest trial
    _smallest: int = 0  # bytes of the run that used the least memory
    _widest: int = 0  # bytes of the largest trial

    @property
    def longest_run(self) -> float:
        """Seconds after which a run is stopped."""
        return _TIMEOUT_FACTOR * self.seconds

    def count(self, elements: int, peak_bytes: int, kept: int = 0, work: int = 0) -> None:
        """Add one trial."""
        self.trials += 1
        self.kept += kept
        self.work += work
        if elements >= self._largest:
            self._widest = max(self._widest, peak_bytes)
            self._largest = elements
        self._fewest = elements if self._fewest is None else min(self._fewest, elements)
        if peak_bytes:
            self._smallest = min(self._smallest or peak_bytes, peak_bytes)

    def fits(self, elements: int, work: int = 0) -> bool:
        """Return whether a trial with this many input elements and operations fits the budget."""
        growth = elements / max(self._largest, 1)
        if self._smallest and elements > self._largest:
            fixed = max(self.weights, self._smallest) if self._fewest != self._largest else self.weights
            needed = fixed + (self._widest - fixed) * growth
            if needed > max(2 * self._smallest, _ALWAYS_USED_BYTES):
                return False
        if self.trials < _MIN_TRIALS:
            return True
        kept = self.kept / self.trials * growth
        can_be_kept = kept < _ALWAYS_KEPT_BYTES or self.kept + kept <= _KEPT_BYTES
        return can_be_kept and self.work + work <= work_of(self.seconds, self.runtime)


class Answer(Struct, frozen=True):
    """The outputs of the reference for one set of inputs."""

    seed: int | None
    style: str
    inputs: TrialInputs
    outputs: list[Value]
    seconds: float = 0.0  # duration of the run
    work: int = 0  # operations of the run
    hides_row: bool = False  # a mask hides every position of some rows: the reference may return NaN there

    @property
    def place(self) -> str:
        """The trial in words."""
        return f"{self.style}, seed {self.seed}"

    @property
    def is_usual(self) -> bool:
        """Whether its sizes and masks are not at an edge."""
        return not self.hides_row and 0 not in self.inputs.dims.values()


def is_empty(values: Sequence[Value]) -> bool:
    """Return whether all values of an output are empty tensors."""
    return all(isinstance(value, np.ndarray) and value.size == 0 for value in values)


def is_constant(values: Sequence[Value]) -> bool:
    """Return whether a tensor output of several elements held the same number, or NaN, in all trials."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"]
    if not arrays or sum(array.size for array in arrays) < 2:
        return False
    first = next(array.flat[0] for array in arrays if array.size)
    return all(bool(((array == first) | ((array != array) & (first != first))).all()) for array in arrays)


Progress: TypeAlias = Callable[[str], None]
Result: TypeAlias = list[Value] | RuntimeFailure
_EVALUATED_WORK = 1 << 32  # operations of a run in the reference evaluator
_EVALUATED_BYTES = 1 << 22  # of weights up to which the reference evaluator, which is slow, may be used
_COUNTED_BYTES = 1 << 26  # of weights up to which a copy of the model that counts comparisons is written
_MOST_STALLS = 2  # runs that time out, after which no other input is tried
_RUNS_BETWEEN = 2  # runs on other inputs between two runs that must give the same
_LONGEST_GUESS = 256  # size of a dimension that is tried once some inputs were accepted
_MOST_REJECTED = 1 << 26  # elements of rejected inputs, after which no other input is tried
_MOST_CRASHES = 12  # the same for runs that crash their process, each of which needs a new one


class Reference:
    """The reference model. Its outputs are computed once."""

    def __init__(
        self,
        model: Model,
        *,
        inputs: ExampleInputs = None,
        seeds: Sequence[int] = DEFAULT_SEEDS,
        trials: int | None = None,
        seconds: float = SECONDS,
        runtimes: Sequence[Runtime | str] = (Runtime.ORT,),
        threads: int | None = None,
        progress: Progress | None = None,
        engine: TorchEngine | None = None,
        rounded: Collection[str] = (),
        own_types: bool = False,
    ) -> None:
        """Take the arguments of `verify`, and those for comparing an exported graph with its module.

        Args:
            model, inputs, seeds, trials, seconds, runtimes, threads, progress: As for `verify`.
            engine: The module that the graph was exported from; its outputs count in place of the graph's.
            rounded: Names of constants stored in a narrow type that the engine holds in a wider one; each is cast
                before use.
            own_types: Never compute in float32 what the model computes in a narrower type.
        """
        if not seeds:
            raise UsageError("verification needs at least one seed")
        self.runtime, *self.further = parse_runtimes(runtimes)
        self.source, self.subject = model, Subject(model)
        self.output_names = [value.name or "" for value in self.subject.model.graph.outputs]
        self.inputs = Inputs(self.subject.model)
        self.random = random_outputs(self.subject.model)
        self.live, self.rounded, self.threads = engine, rounded, threads
        self.progress: Progress = progress or (lambda _: None)
        self.without_kernel: str | None = None  # an operator without kernel, so that both sides compute in float32
        self._own_types = own_types
        self.name = "none"  # of the engine, once the reference has run
        self.not_covered: list[str] = []
        self._examples = read_examples(inputs)
        for feeds in self._examples:
            missing = [name for name in self.inputs.required if name not in feeds]
            if missing:
                needed = ", ".join(self.inputs.required)
                raise UsageError(f"the example inputs lack '{missing[0]}'", hint=f"needed: {needed}")
            limit = outside_limits(self.subject.model, self.inputs.from_user(feeds).dims) if engine is None else None
            if limit is not None:
                raise UsageError(f"the model is not for inputs of this size: {limit}", hint="give other `inputs`")
        self._seeds, self._trials = seeds, trials
        self._tries_values = True  # or only what tells kernels apart
        self._special_plans = self.inputs.exact_plans(seeds)
        self.budget = Budget(seconds, self.runtime, weights=self.subject.constant_bytes)
        self._way = 0  # the way in which the last plan was accepted
        self._reasons: list[str] = []  # why inputs were not accepted
        self._replaced: str | None = None  # why the reference evaluator runs the trials
        self._ordinary: list[Mapping[str, Value]] = []  # accepted inputs whose sizes and values are not at an edge
        self._stalls = self._crashes = 0
        self._rejected = 0  # elements of inputs that were not accepted
        self._refusal: NoKernel | None = None  # why the runtime did not load the model
        self._unsteady: list[str] = []  # notes about outputs that differ between runs
        self._answers: list[Answer] | None = None
        self._special: list[Answer] | None = None
        self._exact: dict[int, list[Value] | None] = {}  # outputs in double precision, by trial
        self.elsewhere: dict[tuple[Runtime, tuple[int, ...]], tuple[str, list[Result]]] = {}  # by runtime and trials

    def answers(self) -> list[Answer]:
        """Return the accepted inputs with their outputs, the user's inputs first.

        Raises:
            RuntimeFailure: The reference accepts none of the inputs.
            UsageError: The reference does not accept the user's inputs.
            VerificationFailed: All outputs are random or were empty in every trial, so that nothing can be compared.
        """
        if self._answers is None:
            self.progress("running the reference")
            answers = self._run_trials()
            is_large = self.subject.constant_bytes > _EVALUATED_BYTES
            if not answers and self._refusal is not None and is_large and upcast(self.subject.model) is not None:
                self.without_kernel = self._refusal.operator
                answers = self._run_trials()
                self.without_kernel = self.without_kernel if answers else None
            if not answers and self.live is None and self.runtime is not Runtime.REFERENCE:
                self._replaced = next(iter(self._reasons), None)
                self.runtime = self.budget.runtime = Runtime.REFERENCE
                answers = self._run_trials()
            if not answers:
                raise self._failure()
            self._check_compared(answers)
            self._answers = answers
            self.not_covered += self._uninformative_outputs(answers)
        return self._answers

    @property
    def how(self) -> list[str]:
        """Notes on how the trials were run, if not in the runtime that was asked for and in the types of the model."""
        missing = f"ONNX Runtime has no CPU kernel for {self.without_kernel} in their own types"
        replaced = [f"run in the reference evaluator: {self._replaced}"] if self._replaced is not None else []
        return replaced + ([f"both sides computed in float32: {missing}"] if self.without_kernel is not None else [])

    def leave_out_values(self) -> None:
        """Run one trial of each kind that tells kernels apart; the others are about values, and a proof covers them."""
        self._tries_values = False

    @functools.cached_property
    def _plans(self) -> list[TrialPlan]:
        plans = self.inputs.plans(self._seeds, values=self._tries_values)
        plans = [plan for plan in plans if self.live is None or not plan.empty]
        steps = sum(plan.one_step for plan in plans)
        return plans if self._trials is None else plans[: self._trials + steps]

    def _check_compared(self, answers: Sequence[Answer]) -> None:
        """Raise an error if no element can be compared, unless the outputs are empty for every input."""
        outputs = self.subject.model.graph.outputs
        counted = [place for place in range(len(outputs)) if place not in self.inputs.continued]
        places = [place for place in counted if outputs[place].name not in self.random]
        if outputs and not places:
            raise VerificationFailed(
                "not verified: all outputs depend on random numbers, so that no element was compared",
                hint='no input tells two such models apart; `verify="off"` writes a result unverified',
            )
        if not places or not is_empty([answer.outputs[place] for answer in answers for place in places]):
            return
        facts = Facts(self.subject.model)
        if any(0 not in (facts.shape(outputs[place]) or ()) for place in places):
            raise VerificationFailed(
                "not verified: all outputs were empty in every trial, so that no element was compared",
                hint="give `inputs` for which the model returns elements",
            )

    def _failure(self) -> RuntimeFailure:
        """Return the error for a model that no runtime loads, or that accepts no input."""
        reasons = [*self._reasons, "there are none"]
        explained = next((known for reason in reasons if (known := explain(self.subject.model, reason))), None)
        if explained is not None:
            message, hint = explained
            without = ', or optimize without verification: `verify="off"`' if hint is LOAD_A_LIBRARY else ""
            return RuntimeFailure(message, hint=hint + without)
        what = f"the model accepts none of the generated inputs: {reasons[0]}"
        return RuntimeFailure(what, hint="give `inputs` that it accepts")

    def special_answers(self) -> list[Answer]:
        """Return the outputs for infinities and NaN, which only bit-exact rewrites must reproduce."""
        if self._special is None:
            with self._opened() as engine:
                answers = [self._first_accepted(engine, plan) for plan in self._special_plans]
            self._special = [answer for answer in answers if answer is not None]
        return self._special

    def as_run(self, subject: Subject) -> Subject:
        """Return the model as it is run: computed in float32 if the reference is."""
        wide = upcast(subject.model, constants="round") if self.without_kernel is not None else None
        return subject if wide is None else Subject(wide)

    def open(self, subject: Subject, profile: bool = False, outputs: int | None = None) -> RemoteSession:
        """Open a model in the runtime that runs the reference."""
        seconds = self.budget.longest_run
        return subject.session(
            self.runtime, threads=self.threads, seconds=seconds, profile=profile, keeps_memory=True, outputs=outputs
        )

    @functools.cached_property
    def hides_weights(self) -> bool:
        """Whether it computes in half precision, where rounding is as large as the error of a weight."""
        return self.live is None and bool(narrow_types(self.subject.model))

    @functools.cached_property
    def double(self) -> DoublePrecision:
        """The model in double precision."""
        from sardonyx.verification.double_precision import DoublePrecision  # loaded where results differ

        return DoublePrecision(self.as_run(self.subject).model, threads=self.threads)

    def in_double(self, number: int, answer: Answer) -> list[Value] | None:
        """Return the outputs in double precision in one trial, computed once."""
        if number not in self._exact:
            live, feeds = self.live, answer.inputs.feeds
            outputs = self.double.run(feeds) if live is None else live.run_in_double(feeds)
            is_whole = outputs is not None and len(outputs) == len(answer.outputs)
            self._exact[number] = outputs if is_whole else None
        return self._exact[number]

    def nearby(self, feeds: Feeds) -> Iterator[list[Value]]:
        """Yield the outputs for inputs whose floats differ by a unit in the last place."""
        changed = list(nearby(feeds)) if self.live is None else []
        if changed:
            with self.open(self.as_run(self.subject)) as engine:
                for each in changed:
                    yield engine.run(each)

    @contextlib.contextmanager
    def _opened(self, subject: Subject | None = None, *, profile: bool = False) -> Generator[Engine]:
        if self.live is not None:
            yield self.live
            return
        with self.open(self.as_run(subject or self.subject), profile, len(self.output_names)) as engine:
            yield engine

    def _run_trials(self) -> list[Answer]:
        """Run the trials in the current runtime; return nothing if it does not load the model."""
        bodies = Bodies(self.subject.model) if self.live is None else None
        marked = bodies.marked if bodies is not None else None
        is_counted = bodies is not None and self._tries_values and self.subject.constant_bytes <= _COUNTED_BYTES
        comparisons = Comparisons(marked or self.subject.model) if is_counted else None
        counting = comparisons.counting if comparisons is not None else None
        observed = counting or marked
        left_out: list[TrialPlan] = []
        try:
            with self._opened(Subject(observed) if observed else None, profile=marked is not None) as engine:
                self.name = engine.name
                answers = self._run_examples(engine)
                ran: frozenset[str] | None = None  # nodes of the first trial
                for number, plan in enumerate(self._plans):
                    cost, work = self.inputs.cost(plan), self.inputs.work(plan)
                    if self._excess(plan) or not self.budget.fits(cost, work):
                        left_out.append(plan)
                        continue
                    self.progress(f"reference, trial {number + 1} of {len(self._plans)}: {plan.label}")
                    answer = self._first_accepted(engine, plan)
                    if answer is not None:
                        answers.append(answer)
                    if ran is None and answers and bodies is not None and isinstance(engine, RemoteSession):
                        ran = engine.executed()
                        # A run that is recorded takes several times as long, and in a loop its record is large. Further
                        # ones are not if nodes of every body ran.
                        if ran is not None:
                            engine.reopen(profile=bool(bodies.never_entered(ran)))
                is_remote = isinstance(engine, RemoteSession)
                executed, counts = (engine.executed(), engine.further) if is_remote else (None, [])
        except RuntimeFailure as failure:  # the model does not load
            self._reasons.append(failure.message)
            self._refusal = failure if isinstance(failure, NoKernel) and not self._own_types else None
            return []
        if executed is not None and ran is not None:
            executed |= ran
        never = bodies.never_entered(executed) if bodies is not None else []
        never += comparisons.notes(counts) if comparisons is not None else []
        gaps = self.inputs.coverage([answer.inputs for answer in answers], values=self._tries_values)
        self.not_covered = never + self._unsteady + gaps
        if left_out and not answers:
            self._reasons.append(f"{self._excess(left_out[0])} is larger than any in a trial")
        if left_out:
            labels = ", ".join(dict.fromkeys(plan.label for plan in left_out))
            self.not_covered.append(f"{len(left_out)} trials did not fit the budget for work and memory: {labels}")
        floats = (v for each in answers for v in each.outputs if isinstance(v, np.ndarray) and v.dtype.kind == "f")
        if self.inputs.masks and any(np.isnan(value).any() for value in floats):
            self.not_covered.append("the reference returns NaN for fully masked rows: not compared there")
        return answers

    def _run_examples(self, engine: Engine) -> list[Answer]:
        answers: list[Answer] = []
        for feeds in self._examples:
            inputs = self.inputs.from_user(feeds)
            try:
                outputs, seconds = _timed(engine, feeds)
            except RuntimeFailure as failure:
                raise UsageError(f"the model does not accept the example inputs: {failure.message}") from failure
            answers.append(Answer(None, "given", inputs, outputs, seconds, self.inputs.work_at(inputs.dims)))
        return answers

    def _first_accepted(self, engine: Engine, plan: TrialPlan) -> Answer | None:
        """Generate a plan in the first way that the reference accepts, starting with the way that worked last."""
        last = self._way + 1 if plan.optional else self.inputs.ways
        for way in range(self._way, last):
            if self._stalls >= _MOST_STALLS or self._crashes >= _MOST_CRASHES or self._rejected >= _MOST_REJECTED:
                return None
            # The first two have the sizes that the graph asks for.
            if (way > 1 and self._is_large_guess(plan, way)) or self._excess(plan, way):
                continue
            try:
                inputs = self.inputs.generate(plan, way, run=engine.run)
                if (limit := outside_limits(self.subject.model, inputs.dims)) is not None:
                    self._reasons.append(limit)
                    continue
                outputs, seconds = _timed(engine, inputs.feeds)
            except RuntimeFailure as failure:
                self._stalls += isinstance(failure, RuntimeTimeout)
                self._crashes += isinstance(failure, RuntimeCrash)
                self._rejected += self.inputs.cost(plan, way)
                self._reasons.append(failure.message)
                continue
            if plan.optional and self.inputs.contradicts(inputs, outputs):
                continue
            if plan.empty and not self._repeats(engine, inputs, outputs):
                return None
            self._way = way
            if not plan.optional:
                self._ordinary.append(inputs.feeds)
            work = self.inputs.work_at(inputs.dims)
            if isinstance(engine, RemoteSession):
                kept = sum(v.nbytes for v in (*inputs.feeds.values(), *outputs) if isinstance(v, np.ndarray))
                self.budget.count(self.inputs.cost(plan), engine.usage.peak_bytes, kept, work)
            return Answer(plan.seed, plan.label, inputs, outputs, seconds, work, plan.hides_row)
        return None

    def _excess(self, plan: TrialPlan, way: int = 0) -> str | None:
        """Return what is too large in a trial for the runtime, or None."""
        work = self.inputs.work(plan, way) if self.runtime is Runtime.REFERENCE and self.live is None else 0
        return self.inputs.excess(plan, way) or (f"a run of {work:.1e} operations" if work > _EVALUATED_WORK else None)

    def _is_large_guess(self, plan: TrialPlan, way: int) -> bool:
        """Return whether sizes that are only guessed may need much time and memory.

        Long sides are tried for sounds, which have one such side and accept no shorter one.
        """
        longest = max(map(max, filter(None, self.inputs.shapes(plan, way))), default=0)
        return (self.budget.trials > 0 and longest > _LONGEST_GUESS) or not self.inputs.fits(plan, way)

    def _repeats(self, engine: Engine, inputs: TrialInputs, outputs: Sequence[Value]) -> bool:
        """Return whether further runs give the same: some kernels do not write the results of empty sums.

        These results are then what an earlier run left in memory, so that other inputs are run in between.
        """
        if is_empty(outputs):
            return True
        comparer = OutputComparer(self.output_names, Accuracy.EXACT, self.random)
        for between in (inputs.feeds, *self._ordinary[:_RUNS_BETWEEN]):
            engine.run(between)
            if comparer.compare(outputs, engine.run(inputs.feeds)):
                break
        else:
            return True
        empty = ", ".join(f"{name} = 0" for name, size in inputs.dims.items() if size == 0)
        self._unsteady.append(f"the reference computes other numbers in every run for {empty}: not compared there")
        return False

    def _uninformative_outputs(self, answers: Sequence[Answer]) -> list[str]:
        """Return notes about outputs that cannot be compared by value, are always empty or always the same number."""
        compared = "depends on random numbers: only its type and shape were compared"
        notes = [f"the output '{name}' {compared}" for name in sorted(self.random)]
        for place, value in enumerate(self.subject.model.graph.outputs):
            outputs = [answer.outputs[place] for answer in answers]
            if is_empty(outputs):
                notes.append(f"the output '{value.name}' was empty in every trial")
            elif is_constant(outputs):
                notes.append(f"the output '{value.name}' is the same number everywhere: agreement is weak evidence")
        return notes


def _timed(engine: Engine, feeds: Mapping[str, Value]) -> tuple[list[Value], float]:
    """Return the outputs, and the duration of the run without the transfer to a worker."""
    began = time.perf_counter()
    outputs = engine.run(feeds)
    return outputs, engine.usage.seconds if isinstance(engine, RemoteSession) else time.perf_counter() - began

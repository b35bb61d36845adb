"""`sardonyx.quantize`: lower precision for selected modules, checked against a simulation, with the measured loss."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.atomic_write import check_free
from sardonyx.errors import UsageError
from sardonyx.ir import io, made_by
from sardonyx.ir.module_patterns import matching_modules
from sardonyx.ir.origins import origins
from sardonyx.ir.scopes import scopes
from sardonyx.ir.tagged_model import HasModel, Source, tagged
from sardonyx.measurement.feeds import at_size
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import Candidate, RewriteJob
from sardonyx.provenance import merge
from sardonyx.quantization import second_moments
from sardonyx.quantization.answers import Answers
from sardonyx.quantization.budget import Budget, Objective, loss_measures
from sardonyx.quantization.calibration import calibrate
from sardonyx.quantization.choice import Chosen, Request, choose
from sardonyx.quantization.half import measure_half_ranges
from sardonyx.quantization.half_placement import OVERFLOW
from sardonyx.quantization.job import Job
from sardonyx.quantization.loss import measure
from sardonyx.quantization.metric import Metric
from sardonyx.quantization.precisions import AUTO, Assignment, Plan, Precision, Recipes, Target, candidates
from sardonyx.quantization.product_check import ProductErrors, check_products
from sardonyx.quantization.ranges import Ranges, by_module
from sardonyx.quantization.recipe import Selection, Simulated
from sardonyx.quantization.samples import Data, Samples, divide, required_inputs
from sardonyx.quantization.samples import Feeds as SampleFeeds
from sardonyx.quantization.sensitivity import Trials
from sardonyx.quantization.timing import Timer
from sardonyx.records.environment import environment
from sardonyx.records.progress import Clock, Progress
from sardonyx.records.quantization import Choice, Loss, ModuleRange, Quantization, QuantizedProduct
from sardonyx.records.run import PassRecord
from sardonyx.runtime import Feeds
from sardonyx.verification import Oracle, seeds_from
from sardonyx.verification.subject import Subject
from sardonyx.verification.values import Style

_USUAL = (Style.NORMAL.value, Style.POSITIVE.value)  # generated inputs on which the loss is measured
_TRIALS = 6  # generated inputs on which products are compared with their simulation
_GENERATED = 12  # samples if there is no data and a choice to make
_CHECKED = 2  # samples of data on which products are compared with their simulation
_NAMED = 5  # modules of a note
_RANGES: tuple[Precision, ...] = ("int8-static", "fp16")  # precisions that need the ranges of activations
_MOMENTS: tuple[Precision, ...] = ("int8", "int8-weights", "int4")  # that lose less if activations are known
_BYTES = ("int8-weights", "int4")  # precisions that are asked for to save bytes


class Quantized(Quantization, HasModel, frozen=True):
    """A Quantization record together with the model."""

    model: ir.Model | None = None


def quantize(
    source: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    to: Precision | Literal["auto"] = "auto",
    target: Target = "portable",
    keep: Sequence[str] = (),
    only: Sequence[str] = (),
    data: Data | None = None,
    metric: str | Callable[..., Any] | None = None,
    budget: str | Sequence[str] = (),
    objective: Objective | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Quantized:
    """Store and compute the products of a model in lower precision, and measure what is lost.

    With `to="auto"` or a budget, the precision of every module is chosen by measurement. Every quantized product is
    compared with a float32 simulation of the same arithmetic before anything is written.

    Args:
        source: A path, a ModelProto or an onnx-ir Model of float32 weights; it is not changed.
        output: Where to write the result; None writes nothing.
        to: "int8" computes products in 8-bit integers and quantizes activations at run time; "int8-static" takes the
            ranges of activations from the data; "int8-weights" and "int4" store weights in 8 or 4 bits and compute in
            float32. Embedding tables are stored in 8 bits by each of them. "fp16" computes in float16 where the
            measured numbers allow it; "bf16" stores weights in bfloat16. "auto" chooses one of the integer precisions,
            or float32, for every module.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        keep: Modules that stay in float32: paths, tags, globs or class names.
        only: Modules to quantize, named in the same way; all if empty.
        data: Samples: .npz files, folders of them, "FILE.py:FUNCTION" that yields arrays by name, or such arrays. A
            quarter of them is used to choose, and the loss is measured on the rest. Generated inputs if None.
        metric: "FILE.py:FUNCTION" or a function that returns a number, higher is better, for the outputs of a run, by
            name, and its sample.
        budget: What the result has to meet: "relative_l2<=0.01", "top1>=0.99", limits of `cosine`, of the drop of the
            `metric`, and of `bytes` and `time` relative to the source. If empty, "auto" has relative_l2<=0.01 and
            top1>=0.99, and the other precisions are used for all modules.
        objective: What to make small within the budget: "time" or "bytes". By default bytes for "int8-weights" and
            "int4", otherwise time.
        sizes: Sizes of dynamic dimensions at which models are timed.
        seed: Seed of the generated inputs and of the division of the data.
        threads: Threads of the runtime.
        force: Overwrite an existing output.
        progress: Called with the phase, and the fraction done if known.

    Returns:
        The record, with the quantized model as `.model`; `.to_proto()` returns it as a ModelProto.

    Raises:
        VerificationFailed: A product differs from its simulation, or the result has new NaN. Nothing is written.
        GateNotMet: No measured model meets the budget, or none is faster than the source. Nothing is written.
        UsageError: A pattern matches no module, nothing can be quantized, the data does not fit the inputs, or the
            metric fails.
    """
    began = time.perf_counter()
    clock = Clock(progress)
    if output is not None:
        check_free(os.fspath(output), force=force)
    limits = [budget] if isinstance(budget, str) else list(budget)
    scored = Metric.of(metric)
    limit = Budget.of(limits, has_metric=scored is not None)
    request = _request(source, to, keep, only, limit, objective, has_data=data is not None)
    chooses = to == AUTO or bool(limits)
    samples = None if data is None else Samples(data)
    run = _Run(source, target, request.precisions, samples, scored, sizes or {}, seed, threads, clock, chooses=chooses)
    chosen = run.chosen(request) if chooses else None
    plan = chosen.plan if chosen is not None else (Assignment(request.precisions[0], request.selection),)
    arguments = {"to": to, "target": target, "keep": tuple(keep), "only": tuple(only)}
    judged = run.judged(plan, chosen)
    made_by.write(judged.candidate.model, "quantize", arguments)
    with clock.phase("writing"):
        model = judged.candidate.model
        saved = io.save(model, output, force=force, hashed=True) if output is not None else io.Saved(None)
    return Quantized(
        status="done",
        environment=environment(),
        options={**arguments, "seed": seed, "data": data is not None, "metric": scored and scored.name},
        source=run.job.artifact(),
        result=run_tables.artifact(model, output, saved.digest),
        **_tables(run.job, judged),
        ranges=(measured := _module_ranges(run.recipes.ranges, judged.candidate)),
        notes=(
            *saved.notes,
            *judged.errors.notes,
            *_overflows(measured),
            *_calibrated(run.recipes, plan),
            *_joined(judged.choice),
        ),
        check=judged.errors.record,
        data=run.parts.record(run.kind),
        loss=judged.loss,
        choice=judged.choice,
        seconds={**clock.seconds, "total": time.perf_counter() - began},
        model=model,
    )


class _Judged(Struct, frozen=True, eq=False):
    """The model of the chosen plan, checked and measured."""

    candidate: Candidate
    passes: tuple[PassRecord, ...]
    products: list[Simulated]
    errors: ProductErrors
    loss: Loss
    choice: Choice | None


class _Run:
    """One call of `quantize`: the source, the samples, and the conditions of all runs."""

    def __init__(
        self,
        source: Source,
        target: Target,
        precisions: tuple[Precision, ...],
        samples: Samples | None,
        metric: Metric | None,
        sizes: Mapping[str, int],
        seed: int,
        threads: int | None,
        clock: Clock,
        *,
        chooses: bool,
    ) -> None:
        self.source = Path(source) if isinstance(source, (str, os.PathLike)) else source
        self.kind = "data" if samples is not None else "generated"
        self._subject = Subject(self.source)
        self._metric, self._sizes, self._seed, self._threads, self._clock = metric, sizes, seed, threads, clock
        if sizes:
            at_size(self._subject.model, sizes)
        self._samples = samples or self._generated(chooses=chooses)
        needed = _RANGES if samples is None else (*_RANGES, *_MOMENTS)
        calibrates = any(precision in needed for precision in precisions)
        self.parts = divide(len(self._samples), seed, calibrate=calibrates, choose=chooses)
        with clock.phase("calibrating"):
            self.recipes = self._calibrated(target, precisions)
        self.job = Job(self.source, self.recipes)

    def _calibrated(self, target: Target, precisions: Sequence[Precision]) -> Recipes:
        """Return the recipes with what they need to know about activations."""
        source, threads, samples = self.source, self._threads, self._feeds(self.parts.calibrate)
        facts = RewriteJob(source, (), "portable", lambda _phase, _fraction: None).source_facts
        has_moments = self.kind == "data" and bool(samples)  # generated inputs say nothing about them
        return Recipes(
            target,
            calibration=calibrate(source, samples, threads) if "int8-static" in precisions else None,
            ranges=measure_half_ranges(facts(), samples, threads) if "fp16" in precisions else {},
            moments=second_moments.measure(Subject(source), samples, threads)
            if has_moments and any(each in precisions for each in _MOMENTS)
            else {},
        )

    def chosen(self, request: Request) -> Chosen:
        """Choose the precision of every module."""
        answers = self._answers(self.parts.choose)
        sample = answers.feeds[0] if self.kind == "data" else None
        timer = Timer(self.source, self._sizes, sample, self._threads or 1, self._seed)
        trials = Trials(self.job, request.selection, answers, threads=self._threads, seed=self._seed)
        return choose(request, trials, timer, self._clock)

    def judged(self, plan: Plan, chosen: Chosen | None) -> _Judged:
        """Build the model of a plan, compare its products with their simulation, and measure its loss."""
        with self._clock.phase("quantizing"):
            candidate, passes = self.job.quantized(plan)
        answers = self._answers(self.parts.judge)
        with self._clock.phase("comparing with the simulation"):
            model, products = self.job.simulated(plan)
            errors = check_products(model, products, self._compared(plan, answers), self._threads)
            del model
        with self._clock.phase("measuring the loss"):
            measured = measure(Subject(candidate.model), answers, self._threads)
            loss = measured.loss(self.kind, self._metric and self._metric.name, self._seed)
        choice = None
        if chosen is not None:
            broken = chosen.budget.broken(loss_measures(loss.scores)) if loss.scores is not None else []
            choice = replace(chosen.choice, broken=tuple(broken))
        return _Judged(candidate, passes, products, errors, loss, choice)

    def _answers(self, numbers: Sequence[int]) -> Answers:
        with self._clock.phase("running the source"):
            return Answers(
                self._subject,
                self._samples,
                numbers,
                metric=self._metric,
                threads=self._threads,
                progress=lambda fraction: self._clock.tell("running the source", fraction),
            )

    def _feeds(self, numbers: Sequence[int]) -> SampleFeeds:
        extra = self._metric is not None
        return SampleFeeds(self._samples, numbers, required_inputs(self._subject.model), extra=extra)

    def _compared(self, plan: Plan, answers: Answers) -> Sequence[Feeds]:
        """Return the inputs on which products are compared with their simulation: generated ones, and some data."""
        if any(each.precision == "fp16" for each in plan):
            return answers.feeds[:_TRIALS]  # generated inputs up to 1e4 overflow in float16
        given = list(answers.feeds[:_CHECKED]) if self.kind == "data" else None
        oracle = Oracle(self.source, inputs=given, seeds=seeds_from(self._seed), trials=_TRIALS, threads=self._threads)
        return [answer.inputs.feeds for answer in oracle.answers() if 0 not in answer.inputs.dims.values()]

    def _generated(self, *, chooses: bool) -> Samples:
        """Return generated inputs: at the sizes of the timing if there is a choice to make, otherwise at several."""
        if chooses:
            model, seed = self._subject.model, self._seed
            samples = Samples([at_size(model, self._sizes, seed=seed + step) for step in range(_GENERATED)])
            try:
                Answers(self._subject, samples, (0,), threads=self._threads)
            except UsageError:
                pass  # the model does not accept them; those below are tried in several ways
            else:
                return samples
        oracle = Oracle(self.source, seeds=seeds_from(self._seed), trials=_TRIALS, threads=self._threads)
        answers = [answer for answer in oracle.answers() if 0 not in answer.inputs.dims.values()]
        usual = [answer for answer in answers if answer.style in _USUAL] or answers
        return Samples([answer.inputs.feeds for answer in usual])


def _request(
    source: Source,
    to: Precision | Literal["auto"],
    keep: Sequence[str],
    only: Sequence[str],
    budget: Budget,
    objective: Objective | None,
    *,
    has_data: bool,
) -> Request:
    precisions = candidates(has_data=has_data) if to == AUTO else (to,)
    default: Objective = "bytes" if to in _BYTES else "time"
    return Request(precisions, _selection(source, keep, only), budget, objective or default)


def _selection(source: Source, keep: Sequence[str], only: Sequence[str]) -> Selection:
    """Return the modules that the patterns name.

    Raises:
        UsageError: if a pattern matches no module.
    """
    if not keep and not only:
        return Selection()
    whole = tagged(source)
    running = sorted(merge(origins(node) for scope in scopes(whole.model) for node in scope.graph))

    def named(patterns: Iterable[str]) -> frozenset[str]:
        return frozenset(path for each in patterns for path in matching_modules(whole.hierarchy, running, each))

    return Selection(named(keep), named(only) if only else None)


def _tables(job: Job, judged: _Judged) -> dict[str, Any]:
    """Return the fields of the record that follow from the two graphs."""
    candidate, errors = judged.candidate, judged.errors
    after = run_tables.snapshot(candidate.facts)
    return {
        "opset_changes": job.opset_changes(candidate.model),
        "before": candidate.before.counts,
        "after": after.counts,
        "modules": run_tables.module_counts(candidate.before, after, candidate.hierarchy),
        "products": tuple(
            QuantizedProduct(
                product.node,
                product.module,
                product.recipe,
                product.rows,
                product.columns,
                error,
                allowed,
            )
            for product, error, allowed in zip(judged.products, errors.errors, errors.allowed, strict=True)
        ),
        "skipped": tuple(group for record in judged.passes for group in record.refusals),
    }


def _module_ranges(ranges: Ranges, candidate: Candidate) -> tuple[ModuleRange, ...]:
    kept = {refusal.owner for refusal in candidate.log.refusals if refusal.reason.startswith(OVERFLOW)}
    modules = sorted(by_module(ranges.values()).items())
    return tuple(ModuleRange(name, each.low, each.high, name in kept) for name, each in modules)


def _calibrated(recipes: Recipes, plan: Plan) -> tuple[str, ...]:
    is_used = any(each.precision == "int8-static" for each in plan)
    return (recipes.calibration.note,) if is_used and recipes.calibration is not None else ()


def _joined(choice: Choice | None) -> tuple[str, ...]:
    """Return a note if modules were measured together."""
    groups = () if choice is None else choice.groups
    modules = sum(len(group.modules) for group in groups)
    if modules == len(groups):
        return ()
    return (f"the precisions of {modules} modules were chosen in {len(groups)} groups",)


def _overflows(ranges: Sequence[ModuleRange]) -> tuple[str, ...]:
    kept = [each.module for each in ranges if each.kept]
    if not kept:
        return ()
    more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
    return (f"partly in float32, because float16 could overflow: {', '.join(kept[:_NAMED])}{more}",)

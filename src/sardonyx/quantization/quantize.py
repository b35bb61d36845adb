"""`sardonyx.quantize`: lower precision for selected modules, checked against a simulation, with the measured loss."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from sardonyx.atomic_write import check_free
from sardonyx.errors import UsageError
from sardonyx.ir import io, made_by
from sardonyx.ir.module_patterns import matching_modules
from sardonyx.ir.origins import origins
from sardonyx.ir.scopes import scopes
from sardonyx.ir.tagged_model import HasModel, Source, tagged
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import Candidate, RewriteJob
from sardonyx.passes.cleanup import UNUSED
from sardonyx.provenance import merge
from sardonyx.quantization.dynamic_int8 import QuantizeDynamically
from sardonyx.quantization.embeddings import QuantizeEmbeddings
from sardonyx.quantization.loss import measure_loss
from sardonyx.quantization.matmul_nbits import QuantizeToMatMulNBits
from sardonyx.quantization.product_check import ProductErrors, allowed_error, check_products
from sardonyx.quantization.recipe import Recipe, Selection, Simulated
from sardonyx.quantization.weight_only import QuantizeWeights
from sardonyx.records.environment import environment
from sardonyx.records.progress import Clock, Progress
from sardonyx.records.quantization import Loss, Quantization, QuantizedProduct
from sardonyx.records.run import Artifact
from sardonyx.verification import Oracle, seeds_from
from sardonyx.verification.compare import ExampleInputs
from sardonyx.verification.reference import Answer
from sardonyx.verification.subject import Subject
from sardonyx.verification.values import Style

Precision = Literal["int8", "int8-weights", "int4"]
_USUAL = (Style.NORMAL.value, Style.POSITIVE.value)  # generated inputs on which the loss is measured
_GENERATED = 6  # trials in addition to the user's data


class Quantized(Quantization, HasModel, frozen=True):
    """A Quantization record together with the model."""

    model: ir.Model | None = None


def quantize(
    source: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    to: Precision = "int8",
    target: Literal["portable", "ort"] = "portable",
    keep: Sequence[str] = (),
    only: Sequence[str] = (),
    data: ExampleInputs = None,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Quantized:
    """Store and compute the products of a model in lower precision, and measure what is lost.

    Every quantized product is compared with a float32 simulation of the same arithmetic before anything is written.

    Args:
        source: A path, a ModelProto or an onnx-ir Model of float32 weights; it is not changed.
        output: Where to write the result; None writes nothing.
        to: "int8" computes products in 8-bit integers and quantizes activations at run time; "int8-weights" and "int4"
            store weights in 8 or 4 bits and compute in float32. Embedding tables are stored in 8 bits by each of them.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        keep: Modules that stay in float32: paths, tags, globs or class names.
        only: Modules to quantize, named in the same way; all if empty.
        data: An .npz file, arrays by name or a list of those, to measure the loss on; generated inputs if None.
        seed: Seed of the generated inputs.
        threads: Threads of the runtime.
        force: Overwrite an existing output.
        progress: Called with the phase, and the fraction done if known.

    Returns:
        The record, with the quantized model as `.model`; `.to_proto()` returns it as a ModelProto.

    Raises:
        VerificationFailed: A product differs from its simulation, or the result has new NaN. Nothing is written.
        UsageError: A pattern matches no module, nothing can be quantized, or the data does not fit the inputs.
    """
    began = time.perf_counter()
    clock = Clock(progress)
    if output is not None:
        check_free(os.fspath(output), force=force)
    arguments = {"to": to, "target": target, "keep": tuple(keep), "only": tuple(only)}
    selection = _selection(source, keep, only)
    job = _Job(source, to, target, selection)
    with clock.phase("quantizing"):
        candidate = job.quantized()
    with clock.phase("running the source"):
        oracle = Oracle(job.source, inputs=data, seeds=seeds_from(seed), trials=_GENERATED, threads=threads)
        answers = [answer for answer in oracle.answers() if 0 not in answer.inputs.dims.values()]
    with clock.phase("comparing with the simulation"):
        model, products = job.simulated()
        errors = check_products(model, products, [answer.inputs.feeds for answer in answers], threads)
        del model
    with clock.phase("measuring the loss"):
        loss = _loss(candidate, answers, data is not None, threads)
    made_by.write(candidate.model, "quantize", arguments)
    with clock.phase("writing"):
        digest = io.save(candidate.model, output, force=force, hashed=True) if output is not None else None
    result = run_tables.artifact(candidate.model, output, digest)
    return Quantized(
        status="done",
        environment=environment(),
        options={**arguments, "seed": seed, "data": data is not None},
        source=job.artifact(),
        result=result,
        **_tables(job, candidate, products, errors),
        check=errors.record,
        loss=loss,
        seconds={**clock.seconds, "total": time.perf_counter() - began},
        model=candidate.model,
    )


class _Job:
    """The source and the recipes that are applied to it."""

    def __init__(self, source: Source, to: Precision, target: str, selection: Selection) -> None:
        self.source = Path(source) if isinstance(source, (str, os.PathLike)) else source
        self._to, self._target, self._selection = to, target, selection
        self.rewriting = self._job(self._recipes(simulate=False))

    def quantized(self) -> Candidate:
        """Return the source after all recipes.

        Raises:
            UsageError: Nothing was quantized.
        """
        candidate = self.rewriting.candidate()
        if not any(event.pass_name.startswith("quantize") for event in candidate.log.events):
            reasons = [refusal.reason for refusal in candidate.log.refusals]
            raise UsageError(
                "nothing can be quantized" + (f": {reasons[0]}" if reasons else ""),
                hint="products of activations with constant float32 weights can be; check `keep` and `only`",
            )
        return candidate

    def simulated(self) -> tuple[ir.Model, list[Simulated]]:
        """Return the result with the simulation of every product beside it."""
        recipes = self._recipes(simulate=True)
        model = self._job(recipes).candidate().model
        return model, [product for recipe in recipes for product in recipe.simulated]

    def artifact(self) -> Artifact:
        """Return the source as an artifact of the record."""
        path = self.rewriting.path
        return self.rewriting.artifact(None if path is None else io.sha256_of(path))

    def opset_changes(self, model: ir.Model) -> dict[str, tuple[int, int]]:
        """Return the old and new versions of the operator sets that changed."""
        changed = model.opset_imports.items() - self.rewriting.opsets.items()
        return {domain: (self.rewriting.opset_of(domain), version) for domain, version in sorted(changed)}

    def _job(self, recipes: tuple[Recipe, ...]) -> RewriteJob:
        # A weight is replaced product by product, so that the model grows until the last one; the result is smaller.
        return RewriteJob(
            self.source, (*recipes, *UNUSED), self._target, lambda _phase, _fraction: None, allow_growth=True
        )

    def _recipes(self, *, simulate: bool) -> tuple[Recipe, ...]:
        tables = QuantizeEmbeddings(self._selection, simulate=simulate)
        if self._to == "int8":
            return tables, QuantizeDynamically(self._selection, simulate=simulate)
        recipe = QuantizeToMatMulNBits if self._target == "ort" else QuantizeWeights
        return tables, recipe(4 if self._to == "int4" else 8, self._selection, simulate=simulate)


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


def _loss(candidate: Candidate, answers: Sequence[Answer], has_data: bool, threads: int | None) -> Loss:
    wanted = (Style.GIVEN.value,) if has_data else _USUAL
    used = [answer for answer in answers if answer.style in wanted] or list(answers)
    names = [value.name or "" for value in candidate.model.graph.outputs]
    return measure_loss(names, Subject(candidate.model), used, "data" if has_data else "generated", threads)


def _tables(job: _Job, candidate: Candidate, products: Sequence[Simulated], errors: ProductErrors) -> dict[str, Any]:
    """Return the fields of the record that follow from the two graphs."""
    after = run_tables.snapshot(candidate.facts)
    passes = run_tables.pass_records(job.rewriting.passes, candidate.log)
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
                product.matrix.rows,
                product.matrix.columns,
                error,
                allowed_error(product.matrix.rows),
            )
            for product, error in zip(products, errors.errors, strict=True)
        ),
        "notes": _notes(errors.errors),
        "skipped": tuple(group for record in passes for group in record.refusals),
    }


def _notes(errors: Sequence[float | None]) -> tuple[str, ...]:
    missing = sum(error is None for error in errors)
    return (f"{missing} products were not compared: their activations were never finite",) if missing else ()

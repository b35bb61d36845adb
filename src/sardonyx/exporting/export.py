"""`sardonyx.export`: a module becomes an ONNX file whose nodes know their modules, proven against PyTorch."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from msgspec.structs import replace
from torch import nn

from sardonyx.analysis import census
from sardonyx.errors import ModelError, UsageError, VerificationFailed
from sardonyx.exporting.generation.check import check_generation, in_float32
from sardonyx.exporting.generation.decoder import attention_window, decoder_example, require_dynamic
from sardonyx.exporting.generation.folder import MODEL, write_beside
from sardonyx.exporting.options import ExportOptions
from sardonyx.frontend.inputs.dynamic import dim_terms, larger_examples
from sardonyx.frontend.inputs.example_resolution import Dims, Inputs, OpenDims, example_for, open_dims
from sardonyx.frontend.inputs.past import with_past as continued
from sardonyx.frontend.inputs.reach import unreached
from sardonyx.frontend.inputs.static_dims import with_fewer_dims
from sardonyx.frontend.models.resolve import given, resolve
from sardonyx.frontend.models.sources import Dtype
from sardonyx.frontend.models.weights import named_state, state_sha256
from sardonyx.frontend.running import initialize
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.frontend.tracing.symbols import Axes
from sardonyx.frontend.tracing.traced import Exporter, TagStyle
from sardonyx.ir import io
from sardonyx.ir.origins import owner
from sardonyx.ir.result import HasModel
from sardonyx.optimizer import pipeline, run_tables
from sardonyx.optimizer.options import OptimizeOptions
from sardonyx.provenance import module_of
from sardonyx.records import gc_pause
from sardonyx.records.environment import environment
from sardonyx.records.export import ExampleInput, Export, SourceModule
from sardonyx.records.progress import Clock, Progress
from sardonyx.records.run import Accuracy, Artifact, Verdict
from sardonyx.verification import Oracle, seeds_from
from sardonyx.verification.half_precision_export import check_in_float32
from sardonyx.verification.upcast import upcast

_DEFAULTS = ExportOptions()
_VARIANTS = 2  # of the example, where random inputs are refused because values depend on each other
_DRAWN_TRIALS = 3  # signed, large, and wide numbers, each at sizes of its own


class Exported(Export, HasModel, frozen=True):
    """An Export together with the model it made."""

    model: ir.Model | None = None


def export(
    source: nn.Module | str,
    inputs: Inputs = None,
    output: str | Path | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    task: str | None = None,
    dtype: Dtype | None = None,
    exporter: Exporter = "dynamo",
    dynamic: Dims = None,
    opset: int | None = None,
    for_generation: bool = False,
    verify: bool = True,
    optimize: bool = False,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    options: ExportOptions = _DEFAULTS,
    progress: Progress | None = None,
) -> Exported:
    """Export a module to ONNX, tell every node its module, and prove the result against the module.

    Args:
        source: any module, which is run in eval mode and left as it was; or where one comes from, as the command line
            takes it (`hf:…`, `hf-config:…`, `torchvision:…`, `timm:…`, `file.py:factory`).
        inputs: example inputs: a tensor, positional ones, or a mapping by name. Where None they are derived, and where
            the mapping holds specifications or numpy arrays, those that it lacks are.
        output: where to write the result; nothing is written where None.
        kwargs: keyword inputs beside positional ones.
        task: which head a Hugging Face model gets.
        dtype: export in this floating-point type, by a copy where the module is the caller's; "keep" keeps its own. If
            None, `hf:` checkpoints are exported in float32 and everything else in its own type.
        exporter: torch.export ("dynamo") or the tracer ("torchscript").
        dynamic: dims to leave open, as input -> axis -> name; "auto" finds them.
        opset: the ONNX opset; the exporter's own default where None.
        for_generation: export a decoder as a folder that onnxruntime-genai loads: `output` is the folder, the cache is
            an input and an output, all lengths are dynamic, and the tokenizer is saved beside the model.
        verify: compare with the module on the example and on drawn inputs.
        optimize: optimize the result, with proof.
        seed: of what is drawn.
        threads: of the runtime.
        force: overwrite an existing output.
        options: what is rarely needed: a decoder's past, tags, torch's metadata, external data.
        progress: told the phase.

    Returns:
        The record of the export, with the model as `.model`.

    Raises:
        ModelError: torch cannot export the module.
        VerificationFailed: the graph does not compute what the module does; nothing is written.
    """
    _check_destination(output, force=force, for_generation=for_generation)
    clock = Clock(progress)
    style = TagStyle(options.include_torch_nn, options.tag_attributes, options.keep_stack_traces)
    with clock.phase("model"):
        default_task = "text-generation" if for_generation else None
        resolved = (
            given(source, dtype)
            if isinstance(source, nn.Module)
            else resolve(str(source), task=task, default_task=default_task, seed=seed, dtype=dtype)
        )
    with prepared(resolved.module) as plain, tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        with clock.phase("inputs"):
            if for_generation:
                example, lazy = decoder_example(plain, seed), ()
            else:
                example = example_for(plain, resolved, inputs, kwargs, seed)
                lazy = initialize(plain, example.args, example.kwargs)
                example = continued(plain, example) if options.with_past else example
            call = Call(plain, example.args, example.kwargs)
            dims = open_dims(call, "auto" if for_generation else dynamic)
            if for_generation:
                require_dynamic(_inputs(call, dims.axes))
        variants = example.variants(plain, seeds_from(seed + 1)[:_VARIANTS]) if verify else []
        others = [Call(plain, each.args, each.kwargs) for each in variants]

        def attempt(dims: OpenDims) -> tuple[_Job, ir.Model, Sequence[str], Verdict | None]:
            draft = _Draft(Path(tempfile.mkdtemp(dir=folder)) / "exported.onnx", external=None if optimize else True)
            job = _Job((call, *others), draft, exporter, seed, threads, clock)
            with clock.phase("export"), gc_pause.paused():
                model, noted = traced.export(call, exporter, dims.axes, opset, style)
            return job, model, noted, job.prove(model, dims) if verify else None

        (job, model, noted, verdict), dims = with_fewer_dims(call, dims, attempt)
        missed = unreached(plain, lambda: call.run(call.tensors))
        described = _inputs(call, dims.axes)
        if for_generation:
            require_dynamic(described)
        with _placed(output, force=force, for_generation=for_generation) as place:
            run = job.optimize(model, place, force=force, external=options.external) if optimize else None
            result = (
                run.result
                if run is not None
                else job.write(model, place, force=force, external=options.external, hashed=verify)
            )
            noted = list(noted)
            if for_generation and place is not None:
                verdict = verdict and job.generate(place, verdict, options.verify_tokens)
                noted += write_beside(place.parent, plain, described)
        result, run = _moved(result, place, output), run and replace(run, result=_moved(run.result, place, output))
        return Exported(
            status="done",
            environment=environment(),
            options={
                "exporter": exporter,
                "opset": opset,
                "dtype": resolved.dtype,
                "with_past": options.with_past,
                "for_generation": for_generation,
                "seed": seed,
                "optimize": optimize,
            },
            module=_identified(plain, resolved.label, hashed=verify),
            inputs=described,
            outputs=tuple(call.outputs),
            result=result,
            **_census(model),
            verdict=verdict,
            optimized=run,
            seconds=clock.seconds,
            notes=tuple(dict.fromkeys((*resolved.notes, *example.notes, *lazy, *dims.notes, *noted))),
            unreached=missed,
            model=model if run is None else run.model,
        )


@dataclass(frozen=True, slots=True)
class _Draft:
    """The graph as a file to prove and to optimize, before anything is written where the user asked."""

    path: Path
    external: bool | None  # weights beside it: the runtime maps them. What is optimized decides on the result's place.

    def of(self, model: ir.Model) -> Path:
        """The file, written once."""
        if not self.path.exists():
            io.save(model, self.path, external=self.external)
        return self.path


class _Job:
    """A module on its way to a file."""

    def __init__(
        self,
        calls: Sequence[Call],
        draft: _Draft,
        exporter: Exporter,
        seed: int,
        threads: int | None,
        clock: Clock,
    ) -> None:
        """Calls are of one module, on the example inputs and on others like them."""
        self._calls, self._call, self._draft, self._exporter = calls, calls[0], draft, exporter
        self._seed, self._threads, self._clock = seed, threads, clock

    def prove(self, model: ir.Model, dims: OpenDims) -> Verdict:
        """Compare with the module on the example and on drawn inputs, of other sizes where dims are dynamic.

        Raises:
            VerificationFailed: where they disagree.
            ModelError: where a dim that the user named could be tried at no other size than the example's.
        """
        with self._clock.phase("proof"):
            verdict = self._verdict(model)
            larger = self._larger(dims.axes, verdict) if verdict.passed else []
            verdict = self._verdict(model, larger) if larger else verdict
        if not verdict.passed:
            raise VerificationFailed(
                f"the exported graph does not compute what the module does: {verdict.failures[0]}",
                hint="torchscript keeps only the branch and sizes it saw, dynamo all; `verify=False` writes it anyway",
            )
        if stiff := _seen_at_one_size(dims.named, verdict):
            raise ModelError(
                f"the dim '{stiff[0]}' cannot be shown to be dynamic: the module took no other size of those tried",
                hint="leave it out of `dynamic`, or `verify=False`",
            )
        return verdict

    def _larger(self, axes: Axes, verdict: Verdict) -> list[dict[str, torch.Tensor]]:
        """Larger examples for the dynamic dims that the random inputs had at one size only."""
        example = dict(zip(self._call.inputs, self._call.tensors, strict=True))
        return larger_examples(self._call.run, example, axes, _seen_at_one_size(axes, verdict))

    def _verdict(self, model: ir.Model, larger: Sequence[Mapping[str, torch.Tensor]] = ()) -> Verdict:
        """By running both; in float32 where the graph computes in half precision."""
        given = [*(dict(zip(call.inputs, call.tensors, strict=True)) for call in self._calls), *larger]
        examples = [{name: to_array(tensor) for name, tensor in each.items()} for each in given]
        how: dict[str, Any] = {
            "seeds": seeds_from(self._seed),
            "trials": _DRAWN_TRIALS,
            "threads": self._threads,
            "progress": self._tell,
        }
        ordered = any(node.op_type == "TopK" for node in model.graph.all_nodes())
        wide = upcast(model, constants="widen")
        if wide is None:
            engine = TorchEngine(self._call, ordered=ordered)
            oracle = Oracle(self._draft.of(model), inputs=examples, engine=engine, **how)
            return oracle.check(self._draft.of(model), Accuracy.REASSOCIATES)
        return check_in_float32(
            self._draft.of(model),
            wide,
            module=TorchEngine(self._call, in_float32=True, ordered=ordered),
            module_itself=TorchEngine(self._call, ordered=ordered),
            weights=[name for name, _ in named_state(self._call.module)],
            inputs=examples,
            other_exporter=traced.OTHER[self._exporter],
            **how,
        )

    def _tell(self, text: str) -> None:
        self._clock.tell(text, None)

    def generate(self, path: Path, verdict: Verdict, steps: int) -> Verdict:
        """Compare the tokens that the written decoder generates with the module's own.

        Raises:
            VerificationFailed: where logits or tokens differ.
        """
        with self._clock.phase("generation"):
            module, wide = self._call.module, in_float32(io.load(path))
            if wide is not None:  # half precision is compared in float32, as everywhere
                module = copy.deepcopy(module).float()
            found = check_generation(
                module,
                TorchEngine(self._call.with_module(module)),
                path if wide is None else wide,
                window=attention_window(module),
                steps=steps,
                seed=self._seed,
                threads=self._threads,
                tell=lambda text: self._clock.tell(text, None),
            )
        if found.failures:
            raise VerificationFailed(
                f"the exported decoder does not generate what the module does: {found.failures[0]}",
                hint="try the other `exporter`",
            )
        gaps = (*verdict.not_covered, *found.not_covered)
        return replace(verdict, generation=found.batches, not_covered=gaps, notes=(*verdict.notes, *found.not_covered))

    def optimize(
        self, model: ir.Model, output: str | Path | None, *, force: bool, external: bool | None
    ) -> pipeline.Optimized:
        """Make it smaller, with proof, and write that."""
        with self._clock.phase("optimize"):
            return pipeline.optimize(
                self._draft.of(model),
                output,
                seed=self._seed,
                threads=self._threads,
                force=force,
                options=OptimizeOptions(external=external),
                progress=self._clock.tell,
            )

    def write(
        self, model: ir.Model, output: str | Path | None, *, force: bool, external: bool | None, hashed: bool
    ) -> Artifact:
        """Write it where the user asked."""
        with self._clock.phase("writing"):
            if output is not None:
                io.save(model, output, force=force, external=external)
            return run_tables.artifact(model, output, hashed=hashed)


def _check_destination(output: str | Path | None, *, force: bool, for_generation: bool) -> None:
    """Refuse at once what could not be written after all the work."""
    if for_generation and output is None:
        raise UsageError("an export for generation is a folder", hint="name one as the output")
    if output is not None:
        check = io.check_free_folder if for_generation else io.check_free
        check(os.fspath(output), force=force)


@contextlib.contextmanager
def _placed(output: str | Path | None, *, force: bool, for_generation: bool) -> Generator[Path | None]:
    """Where to write the model: the output itself, or a file in a folder that appears when everything is in it."""
    if not for_generation or output is None:
        yield None if output is None else Path(output)
        return
    with io.draft_folder(os.fspath(output), force=force) as folder:
        yield Path(folder) / MODEL


def _moved(artifact: Artifact, place: Path | None, output: str | Path | None) -> Artifact:
    """The artifact under the name that it has in the end."""
    if place is None or output is None or place == Path(output):
        return artifact
    return replace(artifact, path=os.fspath(Path(output) / MODEL))


def _seen_at_one_size(named: Axes, verdict: Verdict) -> list[str]:
    """Dynamic dims that no two trials had different sizes of."""
    asked = dict.fromkeys(dim for spec in named.values() for dim in spec.values() if dim_terms(dim) == [dim])
    sizes = {dim: {trial.dims[dim] for trial in verdict.trials if dim in trial.dims} for dim in asked}
    return [dim for dim, seen in sizes.items() if len(seen) < 2]


def _identified(module: nn.Module, label: str, *, hashed: bool) -> SourceModule:
    kind = type(module)
    return SourceModule(
        label=label,
        class_name=f"{kind.__module__}.{kind.__qualname__}",
        modules=sum(1 for _ in module.modules()),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        sha256=state_sha256(module) if hashed else None,
    )


def _inputs(call: Call, axes: Axes) -> tuple[ExampleInput, ...]:
    return tuple(
        ExampleInput(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), dict(axes.get(name, {})))
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
    )


def _census(model: ir.Model) -> dict[str, Any]:
    """What the record says of the exported graph, whose nodes have their origins with them."""
    counted = census.Census.of(model)
    return {
        "counts": counted.counts,
        "modules": len({module_of(owner(node)) for node in counted.nodes}),
        "coverage": census.coverage(counted.nodes),
        "root_nodes": census.root_nodes(counted.nodes),
        "tied": census.tied(counted.initializers),
    }

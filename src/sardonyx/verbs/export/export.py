"""`sardonyx.export`: write a PyTorch module as an ONNX file, tagged with modules and verified against PyTorch."""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch
from msgspec import Struct, structs
from torch import nn
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from sardonyx.common import gc_pause
from sardonyx.common.atomic_write import check_free, check_free_folder, draft_folder
from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import ModelError, SardonyxError, UsageError, VerificationFailed, check_choice
from sardonyx.frontend.inputs.dynamic import dim_terms, larger_examples
from sardonyx.frontend.inputs.examples import Dims, DynamicDims, Inputs, example_for, resolve_dynamic, unpadded
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.inputs.other_branches import Branch, find_branches, with_fewer_dims
from sardonyx.frontend.inputs.past import with_past as with_past_of
from sardonyx.frontend.inputs.search import SWITCHES
from sardonyx.frontend.models import from_module, named_state, resolve
from sardonyx.frontend.running import HALF_TYPES, initialize, unreached, with_threads
from sardonyx.frontend.sources import Dtype
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import Feeds, ModuleCall, continued
from sardonyx.frontend.tracing.dynamo import Operation, recorded
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.graph_names import Axes, with_lowest_limits
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.frontend.tracing.rehearsal import CallsInARow, StateMode, mode_notes, with_state
from sardonyx.frontend.tracing.traced import Exporter, NotExportable, TagStyle
from sardonyx.ir import io, metadata
from sardonyx.ir.io.decoder_folder import move_into
from sardonyx.ir.origins import HasModel, is_program
from sardonyx.records.environment import environment
from sardonyx.records.export import ExampleInput, Export, OperatorChecks
from sardonyx.records.progress import Clock, Progress
from sardonyx.records.run import Accuracy, LoadedDecoder, Verdict
from sardonyx.verbs.export.generation import (
    MODEL,
    GenerationCheck,
    attention_window,
    decoder_example,
    in_float32,
    loaded,
    require_dynamic,
    write_beside,
)
from sardonyx.verbs.export.options import ExportOptions
from sardonyx.verbs.export.programs import (
    Written,
    census_fields,
    example_inputs,
    export_program,
    plain_torch,
    source_module,
    write,
)
from sardonyx.verbs.optimize import pipeline, run_tables
from sardonyx.verification import Oracle, seeds_from
from sardonyx.verification.exported_graph import check_in_float32, round_without_kernels
from sardonyx.verification.subject import Subject
from sardonyx.verification.upcast import narrow_types, upcast

_EXAMPLE_VARIANTS = 2  # of the example, for modules that refuse random inputs because values depend on each other
_SHOWN_PLACES = 3  # of branches in a hint
_MAPPED_BYTES = 1 << 26  # of weights of a language model above which they get a file of their own
_ANYWAY = '`verify="off"` writes it anyway'
_RANDOM_TRIALS = 3  # signed, large, and wide-ranging numbers, each at sizes of its own


class Exported(Export, HasModel, frozen=True):
    """An Export record together with the model."""

    model: ir.Model | None = None


def export(
    source: nn.Module | str | ExportedProgram | ONNXProgram,
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
    state: StateMode = "io",
    training: bool = False,
    verify: Literal["end", "off"] = "end",
    optimize: bool = False,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Export a module to ONNX, tag every node with its module, and verify the graph against the module.

    Args:
        source: A module, which is left unchanged; or a source string as on the command line
            (`hf:…`, `hf-config:…`, `torchvision:…`, `timm:…`, `file.py:factory`); or a `torch.export.ExportedProgram`
            or `torch.onnx.ONNXProgram`, which keeps its names and sizes and is verified against the program.
        inputs: Example inputs: a tensor, a sequence of positional inputs, or a mapping by name. If None, they are
            derived. A mapping of specifications or numpy arrays may be incomplete; the rest is derived.
        output: Where to write the result. If None, nothing is written.
        kwargs: Keyword inputs in addition to positional ones.
        task: Selects the head of a Hugging Face model.
        dtype: The floating-point type to export in; a module of the caller is copied first. "keep" keeps its own. If
            None, `hf:` checkpoints are exported in float32 and everything else in its own type.
        exporter: torch.export ("dynamo") or the tracer ("torchscript").
        dynamic: Dynamic dimensions, as input -> axis -> name; "auto" finds them.
        opset: The ONNX opset. If None, the exporter's default.
        for_generation: Export a decoder as a folder that onnxruntime-genai loads: `output` is the folder, the cache is
            an input and an output, all lengths are dynamic, and the tokenizer is saved with the model.
        state: What forward writes and reads in its next call (buffers, attributes with tensors) becomes inputs and
            outputs ("io"), or stays as it is before the first call ("fixed").
        training: Export the module in training mode. Otherwise in eval mode, with a note if that makes a difference.
        verify: Compare with the module on the example and on random inputs, and with state over several calls in a
            row, or not at all.
        optimize: Optimize the result and verify it again.
        seed: Seed of the random inputs and weights.
        threads: Threads of the runtime and of PyTorch; if None, all, but one for the steps of `for_generation`.
        force: Overwrite an existing output.
        options: Rarely used options: a decoder's past, tags, torch's metadata, external data.
        progress: Called with the current phase.

    Returns:
        The record of the export, with the model as `.model`.

    Raises:
        ModelError: If torch cannot export the module, or it keeps state that no graph can have.
        VerificationFailed: If the graph does not compute what the module computes. Nothing is written then.
    """
    check_choice("verify", verify, ("end", "off"))
    options, clock = options or ExportOptions(), Clock(progress)
    if is_program(source):
        given = {"inputs": inputs, "kwargs": kwargs, "task": task, "dtype": dtype, "dynamic": dynamic}
        modes = {"training": training or None, "for_generation": for_generation or None}
        return Exported(**export_program(
            source, output, of_module=given | modes, opset=opset, verify=verify != "off", optimize=optimize, seed=seed,
            threads=threads, force=force, options=options, clock=clock,
        ))  # fmt: skip
    assert isinstance(source, (nn.Module, str))
    if for_generation and output is None:
        raise UsageError("an export for generation writes a folder", hint="give its path as `output`")
    if output is not None:
        (check_free_folder if for_generation else check_free)(os.fspath(output), force=force)
    with clock.phase("model"):
        default_task = "text-generation" if for_generation else None
        resolved = (
            from_module(source, dtype)
            if isinstance(source, nn.Module)
            else resolve(source, task=task, default_task=default_task, seed=seed, dtype=dtype, training=training)
        )
    with prepared(resolved.module, training=training) as module, temporary_folder() as folder, with_threads(threads):
        with clock.phase("inputs"):
            if for_generation:
                example, lazy_notes = decoder_example(module, seed), ()
            else:
                example = example_for(module, resolved, inputs, kwargs, seed)
                lazy_notes = initialize(module, example.args, example.kwargs)
                example = with_past_of(module, example) if options.with_past else example
            call = ModuleCall(module, example.args, example.kwargs)
            call, state_notes = with_state(call, "fixed" if for_generation else state)
            mode = mode_notes(call, training=resolved.was_training and not training)
            dims = resolve_dynamic(call, "auto" if for_generation else dynamic)
            if for_generation:
                require_dynamic(example_inputs(call, dims.axes))
        variants = example.variants(module, seeds_from(seed + 1)[:_EXAMPLE_VARIANTS]) if verify != "off" else []
        others = (call.with_arguments(variant.args, variant.kwargs).feeds for variant in variants)
        ordinary = unpadded(call) if verify != "off" else None
        examples = [*filter(None, [ordinary]), call.feeds, *others]  # the most ordinary inputs first
        given = {*(inputs if isinstance(inputs, Mapping) else ()), *(kwargs or {}), *(resolved.kwargs or {})}
        fixed = {name: value for name, value in call.fixed.items() if name not in SWITCHES.keys() - given}
        style = TagStyle(options.include_torch_nn, options.tag_attributes, options.keep_stack_traces)
        arguments = {
            "exporter": exporter,
            "opset": opset,
            "dtype": resolved.dtype,
            "with_past": options.with_past,
            "for_generation": for_generation,
            "state": state if state_notes else None,
            "training": training,
            "fixed": fixed or None,
            "seed": seed,
            "optimize": optimize,
        }
        target = options.target
        checks = verify != "off"
        settings = _Settings(arguments, exporter, opset, style, seed, threads, checks, optimize, target, folder, clock)
        job, dims = _export(call, examples, dims, settings)
        missed = unreached(module, call.memory_read())
        described = example_inputs(call, dims.axes)
        if for_generation:
            require_dynamic(described)
        if for_generation and output is not None:
            written = job.write_for_generation(Path(output), described, options, force=force)
        else:
            written = job.write(None if output is None else Path(output), options.external, force=force)
        return Exported(
            status="done",
            environment=environment(),
            options=arguments,
            module=source_module(module, resolved.label, hashed=settings.verify),
            inputs=described,
            outputs=tuple(call.outputs),
            result=written.artifact,
            **census_fields(job.model),
            verdict=written.verdict,
            optimized=written.run,
            seconds=clock.seconds,
            notes=with_lowest_limits(
                (*mode, *state_notes, *resolved.notes, *example.notes, *lazy_notes, *dims.notes, *written.notes)
            ),
            plain_torch=plain_torch(job.model) if optimize and exporter == "dynamo" else None,
            unreached=missed,
            fixed=fixed,
            state=tuple(metadata.read_state(job.model).values()),
            operators=job.operators,
            decoder=written.decoder,
            model=job.model if written.run is None else written.run.model,
        )


class _Settings(Struct, frozen=True):
    """What an export was asked for, apart from the module and its inputs."""

    arguments: Mapping[str, Any]  # for the metadata of the file
    exporter: Exporter
    opset: int | None
    style: TagStyle
    seed: int
    threads: int | None
    verify: bool
    optimize: bool
    target: str
    folder: str  # for temporary files
    clock: Clock


def _export(
    call: ModuleCall, examples: Sequence[Feeds], dims: DynamicDims, settings: _Settings
) -> tuple[_ExportJob, DynamicDims]:
    """Export a module with as many dynamic dimensions as possible.

    Raises:
        ModelError, VerificationFailed: With a hint on the other exporter if its graph matches the module.
    """

    def run(settings: _Settings) -> tuple[_ExportJob, DynamicDims]:
        return with_fewer_dims(call, dims, functools.partial(_trace, call, examples, settings))

    try:
        return run(settings)
    except (ModelError, VerificationFailed) as error:
        first, hinted = settings.exporter, error
        other: Exporter = "torchscript" if first == "dynamo" else "dynamo"
        try:
            job, fewer = run(structs.replace(settings, exporter=other, verify=True, optimize=False))
        except NotExportable as second:
            if isinstance(error, NotExportable):
                both = f"torch cannot export the model: {first}: {error.why}; {other}: {second.why}"
                hinted = NotExportable(both, hint=error.hint or "", why=error.why)
        except SardonyxError:
            pass
        else:
            if all(branch.trial is not None for branch in job.branches):  # both sides of every branch were compared
                notes = (*fewer.notes[len(dims.notes) :], *job.notes)
                trials, limits = (
                    len(job.verdict.trials) if job.verdict else 0,
                    f" ({'; '.join(notes)})" if notes else "",
                )
                advice = f'use `exporter="{other}"`, which matches PyTorch on {trials} trials{limits}'
                error.hint = advice if error.hint is None else f"{advice}; or {error.hint}"
        if hinted is error:
            raise  # an error that is its own cause would be an endless chain
        raise hinted from error


def _trace(call: ModuleCall, examples: Sequence[Feeds], settings: _Settings, dims: DynamicDims) -> _ExportJob:
    """Export a module with these dynamic dimensions and verify the graph."""
    with settings.clock.phase("export"), gc_pause.paused():
        model, notes = traced.export(call, settings.exporter, dims.axes, settings.opset, settings.style)
        is_traced = settings.exporter == "torchscript"
        branches = find_branches(call, dims.axes, examples, search=settings.verify) if is_traced else []
    operations = recorded(model) if settings.verify else None
    metadata.write_options(model, "export", settings.arguments)
    first = call.state.steps[0] if call.state is not None else []
    declared = zip(call.state_inputs, first, strict=True)
    metadata.write_state(
        model, tuple(metadata.declared_state(name, continued(name), to_array(tensor)) for name, tensor in declared)
    )
    metadata.write_limits(model, with_lowest_limits((*dims.notes, *notes)))
    job = _ExportJob(call, examples, model, settings, notes, branches)
    job.round_without_kernels()
    if settings.verify:
        job.verify(dims, operations)
    return job


class _ExportJob:
    """An exported graph that is verified, optimized and written.

    Args:
        call: The module and its example inputs.
        examples: These inputs, others of their kind and, first of all, inputs without padding.
        model: The exported graph.
        settings: What was asked for.
        notes: Notes of the exporter.
        branches: Python values that it fixed although inputs decide them.
    """

    def __init__(
        self,
        call: ModuleCall,
        examples: Sequence[Feeds],
        model: ir.Model,
        settings: _Settings,
        notes: Sequence[str],
        branches: Sequence[Branch] = (),
    ) -> None:
        self.model, self.branches = model, branches
        self._call, self._settings = call, settings
        others = {id(branch.trial): branch.trial for branch in branches if branch.trial is not None}
        self._examples = list({**{id(feeds): feeds for feeds in examples}, **others}.values())
        self.notes = (*(str(branch) for branch in branches if branch.place.number is None), *notes)
        self._clock, self._seed, self._threads = settings.clock, settings.seed, settings.threads
        self.verdict: Verdict | None = None
        self.operators: OperatorChecks | None = None

    @functools.cached_property
    def _file(self) -> io.LoadedFile:
        """A temporary file, written and loaded once for verification and optimization.

        The runtime maps weights that are in a file of their own. An optimized model follows its source in this, so
        `io.save` decides if the model is to be optimized.
        """
        draft = Path(tempfile.mkdtemp(dir=self._settings.folder)) / "exported.onnx"
        io.save(self.model, draft, external=None if self._settings.optimize else True, durable=False)
        return io.LoadedFile.read(draft)

    @property
    def _is_half(self) -> bool:
        return getattr(torch, Facts(self._call.module).dtype) in HALF_TYPES

    def round_without_kernels(self) -> None:
        """Compute parts of a float32 module that are in half precision in float32, if the runtime has no kernels."""
        if self._is_half or not narrow_types(self.model):
            return
        note = round_without_kernels(self.model, self._file, threads=self._threads)
        if note is not None:
            self.notes = (*self.notes, note)
            del self._file  # of the graph as it was

    def verify(self, dims: DynamicDims, operations: Sequence[Operation] | None = None) -> None:
        """Compare with the module on the example and on random inputs, at other sizes of the dynamic dimensions.

        Every operation that torch recorded is compared with its nodes in exact arithmetic.

        Raises:
            VerificationFailed: If they disagree.
            ModelError: If a dimension that the user named could only be tried at the size of the example.
        """
        call = self._call
        with self._clock.phase("verification"):
            verdict = self._verdict()
            untried = _seen_at_one_size(dims.axes, verdict) if verdict.passed else []
            larger = larger_examples(call.run, call.feeds, dims.axes, untried)
            verdict = self._verdict(larger) if larger else verdict
            if operations is not None:
                from sardonyx.verbs.export.operator_checks import check  # not needed for the other exporter

                self.operators = check(operations)
        if not verdict.passed:
            raise self._failure(verdict)
        if untested := _seen_at_one_size(dims.named, verdict):
            raise ModelError(
                f"dimension '{untested[0]}' could not be verified as dynamic: the module accepted no other size",
                hint='leave it out of `dynamic`, or skip verification with `verify="off"`',
            )
        self.verdict = verdict

    def _failure(self, verdict: Verdict) -> VerificationFailed:
        """Return the error for a graph that differs, with the branch on whose other side it does."""
        what, hint = "the exported graph does not compute what the module does", _ANYWAY
        failed = [feeds for feeds, trial in zip(self._examples, verdict.trials, strict=False) if not trial.passed]
        beyond = [branch for branch in self.branches if any(branch.trial is feeds for feeds in failed[:1])]
        if beyond:
            what += f" if {beyond[0].other_side}"
        if self.branches:
            places = dict.fromkeys(str(branch.place) for branch in (*beyond, *self.branches))
            hint = f"write with torch.where or torch.cond: {', '.join(list(places)[:_SHOWN_PLACES])}; {hint}"
        unequal = self.operators.unequal[:1] if self.operators is not None else ()
        return VerificationFailed(f"{what}: {'; '.join((verdict.failures[0], *unequal))}", hint=hint)

    def _verdict(self, larger: Sequence[Feeds] = ()) -> Verdict:
        """Run both and compare; with state, also over several calls in a row."""
        verdict = self._compared(self._file, self.model, self._call, [*self._examples, *larger])
        if not verdict.passed or self._call.state is None:
            return verdict
        first = dict(zip(self._call.state_inputs, map(to_array, self._call.state.steps[0]), strict=True))
        calls = self._call.state.calls
        row, graph = CallsInARow(self._call), metadata.in_a_row(self.model, first, calls)
        in_a_row = self._compared(graph, graph, row, [dict(zip(row.inputs, row.tensors, strict=True))])
        renamed = (structs.replace(each, style=f"{calls} calls in a row, {each.style}") for each in in_a_row.trials)
        return structs.replace(
            verdict,
            passed=in_a_row.passed,
            trials=(*verdict.trials, *renamed),
            failures=tuple(f"{calls} calls in a row: {line}" for line in in_a_row.failures),
        )

    def _compared(
        self, file: io.LoadedFile | ir.Model, model: ir.Model, call: ModuleCall | CallsInARow, tensors: Sequence[Feeds]
    ) -> Verdict:
        """Run a graph and the module's calls, and compare; in float32 if the graph computes in half precision."""
        examples = [{name: to_array(tensor) for name, tensor in feeds.items()} for feeds in tensors]
        settings: dict[str, Any] = {
            "seeds": seeds_from(self._seed),
            "trials": _RANDOM_TRIALS,
            "threads": self._threads,
            "progress": self._report,
        }
        ordered = any(node.op_type == "TopK" for node in model.graph.all_nodes())
        wide = upcast(model, constants="widen")
        if wide is None:
            engine = TorchEngine(call, ordered=ordered)
            oracle = Oracle(file, inputs=examples, engine=engine, **settings)
            return oracle.check(file, Accuracy.REASSOCIATES)
        return check_in_float32(
            file,
            wide,
            module=TorchEngine(call, in_float32=True, ordered=ordered),
            module_itself=TorchEngine(call, ordered=ordered),
            is_half=self._is_half,
            weights=[name for name, _ in named_state(call.module)],
            inputs=examples,
            **settings,
        )

    def _report(self, text: str) -> None:
        self._clock.tell(text, None)

    def write(self, output: Path | None, external: bool | None, *, force: bool) -> Written:
        """Write the graph, optimized if that was asked for."""
        given = self._settings
        how = functools.partial(pipeline.optimize, target=given.target, seed=self._seed, threads=self._threads)
        is_optimized = given.optimize
        done = write(
            self.model, output, external, optimized=how if is_optimized else None, hashed=given.verify, force=force,
            clock=self._clock, source=self._file if is_optimized else None,
        )  # fmt: skip
        return structs.replace(done, notes=(*done.notes, *self.notes), verdict=self.verdict)

    def write_for_generation(
        self, output: Path, inputs: Sequence[ExampleInput], options: ExportOptions, *, force: bool
    ) -> Written:
        """Write a decoder into a folder that appears when it is complete, and check the tokens that it generates."""
        with draft_folder(os.fspath(output), force=force) as folder:
            path = Path(folder) / MODEL
            is_large = Subject(self.model).constant_bytes >= _MAPPED_BYTES
            external = (is_large or None) if options.external is None else options.external
            written = self.write(path, external, force=force)
            notes = (*self.notes, *write_beside(path.parent, self._call.module, inputs))
            verdict, decoder = self.verdict, None
            if verdict is not None:
                verdict, decoder, load_notes = self._check_generation(path, verdict, options.verify_tokens)
                notes = (*notes, *load_notes)
            artifact = structs.replace(written.artifact, path=os.fspath(output / MODEL))
            if (moved := move_into(path, output, hashed=artifact.sha256 is not None)) is not None:
                model, saved = moved
                artifact, notes = run_tables.artifact(model, output / MODEL, saved.digest), (*saved.notes, *notes)
        run = written.run and structs.replace(written.run, result=artifact)
        return Written(artifact, run, tuple(notes), verdict, decoder)

    def _check_generation(
        self, path: Path, verdict: Verdict, steps: int
    ) -> tuple[Verdict, LoadedDecoder | None, list[str]]:
        """Return the verdict with the tokens that the written decoder generates, and how its folder loads, with notes.

        Raises:
            VerificationFailed: If logits or tokens differ, or the runtime does not load the folder.
        """
        with self._clock.phase("generation"):
            file, module = io.LoadedFile.read(path), self._call.module
            wide = in_float32(file.model) if self._is_half else None
            if wide is not None:  # half precision is compared in float32
                module = copy.deepcopy(module).float()
            check = GenerationCheck(
                module,
                TorchEngine(self._call.with_module(module)),
                file if wide is None else wide,
                threads=self._threads,
                report=self._report,
            )
            generated = check.run(attention_window(module), steps, self._seed)
        if generated.failures:
            raise VerificationFailed(
                f"the exported decoder does not generate what the module does: {generated.failures[0]}", hint=_ANYWAY
            )
        gaps = generated.not_covered
        verdict = structs.replace(
            verdict,
            generation=generated.batches,
            not_covered=(*verdict.not_covered, *gaps),
            notes=(*verdict.notes, *gaps),
        )
        with self._clock.phase("loading"):
            own, tensors = wide is None, self._call.tensors
            return verdict, *loaded(path.parent, generated, tensors, in_own_types=own, threads=self._threads)


def _seen_at_one_size(named: Axes, verdict: Verdict) -> list[str]:
    """Return the dynamic dimensions that had the same size in all trials."""
    dims = dict.fromkeys(dim for spec in named.values() for dim in spec.values() if dim_terms(dim) == [dim])
    sizes = {dim: {trial.dims[dim] for trial in verdict.trials if dim in trial.dims} for dim in dims}
    return [dim for dim, seen in sizes.items() if len(seen) < 2]

"""`optimize`: select the passes, run and verify them, write the result, and record the run.

`opportunities` runs the passes on a copy; nothing is verified or written, so its answer is what `optimize` would try.
"""

from __future__ import annotations

import difflib
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import onnx_ir as ir
from msgspec.structs import asdict, replace

from sardonyx.common.atomic_write import check_free, check_free_folder
from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import UsageError, VerificationFailed, check_choice
from sardonyx.ir import io, metadata, origins
from sardonyx.ir.device import target_named
from sardonyx.ir.opset_raising import HIGHEST
from sardonyx.ir.origins import HasModel, is_program
from sardonyx.passes import Pass
from sardonyx.passes.installed import available, installed
from sardonyx.records.environment import environment
from sardonyx.records.inspection import Opportunities
from sardonyx.records.provenance import UNTAGGED
from sardonyx.records.run import Artifact, Run, Tuning
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.optimize import run_tables
from sardonyx.verbs.optimize.candidates import (
    WHOLE_PASS,
    Forbidden,
    Progress,
    RewriteJob,
    Source,
    VerifiedCandidate,
    fresh,
)
from sardonyx.verbs.optimize.options import OptimizeOptions, TuneOptions
from sardonyx.verbs.optimize.rollback import Inputs, Verifier

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

    from sardonyx.frontend.tracing.traced import Program
    from sardonyx.verbs.optimize.details import RunDetails


class Optimized(Run, HasModel, frozen=True):
    """A Run together with the optimized model.

    `fingerprint`, `attention`, `wiring_before` and `wiring_after` are computed when one of them is first read, from the
    source and from `model`: read them before you change the model.
    """

    model: ir.Model | None = None
    _details: Callable[[], RunDetails] | None = None

    def read_details(self) -> None:
        """Compute what only reports need, so that later changes of the source or the model do not matter."""
        if self._details is not None:
            self._details()


def _detail(name: str) -> property:
    """Return a property that reads a field of the details, or what the record was created with."""
    field: Any = getattr(Run, name)

    def read(run: Optimized) -> Any:
        details = run._details  # pyright: ignore[reportPrivateUsage]  # of the class above
        return field.__get__(run) if details is None else getattr(details(), name)

    return property(read)


for _name in ("fingerprint", "attention", "wiring_before", "wiring_after"):
    setattr(Optimized, _name, _detail(_name))


def optimize(
    source: Source | ExportedProgram | ONNXProgram,
    output: str | Path | None = None,
    *,
    target: str = "portable",
    verify: Literal["each", "end", "off"] = "end",
    passes: Sequence[Pass] = (),
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    inputs: Inputs = None,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    certificate: str | Path | None = None,
    tune: bool | TuneOptions = False,
    options: OptimizeOptions | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Make a graph smaller and verify that it computes the same.

    Args:
        source: A path, a ModelProto, an onnx-ir Model, or a `torch.onnx.ONNXProgram` or `torch.export.ExportedProgram`,
            which the result is also verified against; it is not changed.
        output: Where to write the result; None writes nothing.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well, or a device ("webgpu", …)
            or the file of its profile: then every new node has a kernel there, if those that it replaces have.
        verify: Verify after each pass, at the end, or not at all.
        passes: Your own passes, which run after the built-in ones and those of installed packages.
        only: Names of the passes to run; None runs all passes of the target.
        skip: Names of passes to leave out.
        inputs: An .npz file or arrays by name to verify on, in addition to the generated inputs.
        seed: Seed of the generated inputs.
        threads: Threads of the runtime.
        force: Overwrite an existing output.
        dry_run: Report what would apply; verify and write nothing.
        certificate: Where to write the certificate, with which `sardonyx-check` checks every rewrite; None writes none.
        tune: Measure on this machine and keep only rewrites that are not slower on it, with one thread unless
            `threads` is given. Pass `TuneOptions` to set the time and the sizes.
        options: Options that are rarely needed: opsets, growth, modules to keep, runtimes, external data.
        progress: Called with the phase, and the fraction done if known.

    Returns:
        The record of the run, with the optimized model as `.model`; `.to_proto()` returns it as a ModelProto.

    Raises:
        VerificationFailed: The models differ even without any rewrite.
        UsageError: A name in `options.keep_modules` matches no module.
        RuntimeFailure: A model that is to be measured cannot be run.
        SardonyxError: A pass from outside sardonyx raised an exception.
    """
    began = time.perf_counter()
    check_choice("verify", verify, ("each", "end", "off"))
    options = options or OptimizeOptions()
    program = _program(source)
    source = cast("Source", source if program is None else program.model)
    aim = target_named(target)
    fewest = options.fewest_nodes or aim.wants_fewest_nodes
    usual = select(aim.operators, only, skip, passes=passes, fewest_nodes=fewest)
    every = select(aim.operators, only, skip, passes=passes, fewest_nodes=True) if tune else usual
    left_out = frozenset((rule.name, WHOLE_PASS) for rule in every if rule not in usual)
    if options.freeze_inputs and certificate is not None:
        raise UsageError("a certificate is for a result with the inputs of the source", hint="drop `freeze_inputs`")
    source, defaults = frozen(source) if options.freeze_inputs else (source, ())
    job = RewriteJob(
        source,
        every,
        target,
        progress or (lambda _phase, _fraction: None),
        max_opset=_opset_bound(options),
        allow_growth=options.allow_growth,
        keep_modules=options.keep_modules,
        certifies=certificate is not None,
    )
    if tune and dry_run:
        raise UsageError("a dry run measures nothing", hint="leave out one of tune and dry_run")
    file = None if output is None or dry_run else os.fspath(output)
    _check_destinations(
        file, certificate, job, options.reproducer, verifies=verify != "off" and not dry_run, force=force
    )
    verifier = Verifier(job, options, inputs, seed, threads, force=force)
    hashed = (verify != "off" if options.hashes is None else options.hashes) and not dry_run
    hashed = hashed or certificate is not None
    arguments = {"target": target, "verify": verify, "only": only, "skip": skip, "seed": seed, "tune": bool(tune)}
    with ThreadPoolExecutor(1) as pool:  # a large file is hashed while the passes run and the result is written
        digest = io.sha256_in(pool, job.path) if hashed and job.path is not None else None
        mode = "off" if dry_run else verify
        if tune:
            measuring = TuneOptions() if tune is True else tune
            verified, tuned = _tuned(job, verifier, mode, left_out, measuring, threads or 1, seed)
        else:
            verified, tuned = verifier.verified(mode, left_out), None
        model = verified.candidate.model
        checked = () if program is None or dry_run or verify == "off" else _as_program(program, verified, seed, threads)
        if not dry_run:
            metadata.write_options(model, "optimize", arguments | {name: getattr(options, name) for name in _OF_RESULT})
        result, kept = run_tables.artifact(model, None, None), ()
        if file is not None:
            job.progress("writing", None)
            external, copies = options.external, verifier.copies
            saved = io.save(model, file, force=force, external=external, hashed=hashed, copies=copies)
            result, kept = run_tables.artifact(model, file, saved.digest), saved.notes
        original = job.artifact(digest.result() if digest is not None else None)
    if certificate is not None:
        from sardonyx.verbs.optimize import certificate as certificates  # slow to import, and few runs need it

        recorder, sides = verified.candidate.recorder, (original, result)
        assert recorder is not None
        certificates.write(certificate, certificates.content(recorder, model, sides, verifier.feeds), force=force)
    run = _record(job, verified, tuned, {**arguments, "dry_run": dry_run, **asdict(options)}, (original, result))
    if job.path is None:  # a model in memory may be changed later, so its details are computed now
        run.read_details()
    seconds = {**verifier.seconds, **run.seconds, "total": time.perf_counter() - began}
    checked += () if aim.device is None else aim.device.notes()
    return replace(run, notes=(*checked, *kept, *defaults, *unfrozen_notes(model), *run.notes), seconds=seconds)


def _program(source: object) -> Program | None:
    """Return what torch exported; None if the source is something else."""
    if not is_program(source):
        return None
    from sardonyx.frontend.tracing.traced import read  # imports torch

    return read(source)


def _as_program(program: Program, verified: VerifiedCandidate, seed: int, threads: int | None) -> tuple[str, ...]:
    """Compare the result with the program in PyTorch; return a note.

    Raises:
        VerificationFailed: They differ.
    """
    from sardonyx.verification.exported_graph import compare_with_program

    if program.call is None or verified.verdict is None:
        return ("not compared with PyTorch: this ONNXProgram has no exported program",)
    found = compare_with_program(program, verified.candidate.model, seed=seed, threads=threads)
    if not found.passed:
        raise VerificationFailed(
            f"the result does not compute what the program does in PyTorch: {found.failures[0]}",
            hint="`sardonyx.export` with the program says whether its translation to ONNX is the cause",
        )
    return (f"the result computes what the exported program does in PyTorch, on {len(found.trials)} trials",)


def _check_destinations(
    file: str | None,
    certificate: str | Path | None,
    job: RewriteJob,
    reproducer: str | None,
    *,
    verifies: bool,
    force: bool,
) -> None:
    """Raise an error if the result, a certificate or a reproducer cannot be made or written."""
    if file is not None:
        check_free(file, force=force)
    if certificate is not None:
        if job.path is None or file is None:
            raise UsageError("a certificate is about two files", hint="name the source and the output as paths")
        check_free(os.fspath(certificate), force=force)
    if reproducer is not None:
        if not verifies:
            raise UsageError("only verification finds wrong rewrites", hint="leave out the reproducer, or verify")
        check_free_folder(reproducer, force=force)


def _tuned(
    job: RewriteJob, verifier: Verifier, mode: str, left_out: Forbidden, options: TuneOptions, threads: int, seed: int
) -> tuple[VerifiedCandidate, Tuning]:
    """Run the passes, verify the result, and keep only rewrites that are not slower here."""
    from sardonyx.verbs.analyze.fingerprint import Family, fingerprint  # imported here because few runs need it
    from sardonyx.verbs.optimize.tuner import Tuner  # imported here so that runs without tuning do not load it

    with temporary_folder() as folder:
        # refuses wrong options before the passes run
        tuner = Tuner(job, options, Path(folder), threads=threads, seed=seed, left_out=left_out)
        verified = verifier.verified(mode, left_out)
        convolutional = fingerprint(verified.candidate.model).family is Family.CONVOLUTIONAL
        return tuner.run(verified, functools.partial(verifier.verified, mode), convolutional=convolutional)


def _details(job: RewriteJob, verified: VerifiedCandidate) -> RunDetails:
    from sardonyx.verbs.optimize.details import describe  # imported here because few runs need it

    candidate = verified.candidate
    return describe(job.source_facts(), candidate.facts, candidate.log.refusals, verified.rolled_back)


def _record(
    job: RewriteJob,
    verified: VerifiedCandidate,
    tuning: Tuning | None,
    options: dict[str, Any],
    files: tuple[Artifact, Artifact],
) -> Optimized:
    """Return the record of a run without its times; `files` are the source and the result."""
    candidate = verified.candidate
    before, after = candidate.before, run_tables.snapshot(candidate.facts)
    changed = candidate.model.opset_imports.items() - job.opsets.items()
    untagged = () if origins.is_tagged(candidate.model) else (UNTAGGED,)
    outside = [each for each in installed() if each.rule in job.passes]  # the run depends on their packages
    packages = [f"the pass {each.rule.name} is of the package {each.package}" for each in outside]
    return Optimized(
        status="done",
        environment=environment(),
        options=options,
        source=files[0],
        result=files[1],
        opset_changes={domain: (job.opset_of(domain), version) for domain, version in sorted(changed)},
        before=before.counts,
        after=after.counts,
        ops=run_tables.op_counts(before, after),
        modules=run_tables.module_counts(before, after, candidate.hierarchy),
        passes=run_tables.pass_records(job.passes, candidate.log),
        events=tuple(candidate.log.events),
        rolled_back=verified.rolled_back,
        verdict=verified.verdict,
        seconds={} if tuning is None else {"tuning": tuning.seconds},
        notes=(*job.notes, *packages, *run_tables.growth_notes(before.counts, candidate.log), *untagged),
        tuning=tuning,
        model=candidate.model,
        _details=functools.cache(functools.partial(_details, job, verified)),
    )


def _opset_bound(options: OptimizeOptions) -> int:
    if options.keep_opset and options.max_opset is not None:
        raise UsageError("max_opset and keep_opset contradict each other", hint="give one of them")
    return 0 if options.keep_opset else HIGHEST if options.max_opset is None else options.max_opset


def select(
    target: str,
    only: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
    *,
    passes: Iterable[Pass] = (),
    fewest_nodes: bool = False,
) -> tuple[Pass, ...]:
    """Return the passes of a target, restricted by name.

    Built-in passes come first, then those of installed packages, then `passes`. Passes that measured slower are
    included only if named in `only`, or with `fewest_nodes`.

    Raises:
        UsageError: No pass has one of the names.
        SardonyxError: The passes of an installed package cannot be loaded.
    """
    passes = available(passes)
    names = [rule.name for rule in passes]
    for name in (*(only or ()), *(skip or ())):
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else "`sardonyx passes` lists them"
            raise UsageError(f"there is no pass {name!r}", hint=hint)
    default = (rule.name for rule in passes if fewest_nodes or not rule.slower)
    selected = set(default if only is None else only) - set(skip or ())
    runs = (rule for rule in passes if target in rule.targets or rule.reports_missed)
    return tuple(rule for rule in runs if rule.name in selected)


# the options that decide what the result is, not how it is verified or stored
_OF_RESULT = ("fewest_nodes", "max_opset", "keep_opset", "allow_growth", "freeze_inputs", "keep_modules")
_OPTIONAL_INPUTS_IR = 4  # the first IR version in which an initializer need not be an input
_INPUTS_NAMED = 3  # inputs of a note


def frozen(source: Source) -> tuple[Source, tuple[str, ...]]:
    """Return a source whose initializers are no inputs, and a note about those that were; the source is not changed."""
    model = fresh(source)
    names = _defaults(model)
    if not names:
        return source, ("no initializer is an input: there is nothing to freeze",)
    model.graph.inputs[:] = [value for value in model.graph.inputs if not value.is_initializer()]
    model.ir_version = max(model.ir_version or 0, _OPTIONAL_INPUTS_IR)
    path = source.path if isinstance(source, io.LoadedFile) else source
    result = io.LoadedFile(Path(path), model) if isinstance(path, (str, Path)) else model
    are = "is a constant and no input" if len(names) == 1 else "are constants and no inputs"
    return result, (f"{_counted(names)} {are} of the result",)


def unfrozen_notes(model: ir.Model) -> tuple[str, ...]:
    """Return a note about initializers that are also inputs, if there are any."""
    names = _defaults(model)
    if not names:
        return ()
    be = "is also an input" if len(names) == 1 else "are also inputs"
    return (
        f"{_counted(names)} {be}, for which callers may pass other values: nothing that reads them was folded; "
        "`freeze_inputs=True` makes them constants",
    )


def _defaults(model: ir.Model) -> list[str]:
    return [value.name or "" for value in model.graph.inputs if value.is_initializer()]


def _counted(names: list[str]) -> str:
    listed = ", ".join(map(repr, names[:_INPUTS_NAMED])) + (", …" if len(names) > _INPUTS_NAMED else "")
    return f"{len(names)} initializer{'s' if len(names) > 1 else ''} ({listed})"


def opportunities(source: Source, *, target: str = "portable", progress: Progress | None = None) -> Opportunities:
    """Find what the passes would rewrite in a model, and why they would skip the rest; nothing is written.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: See `optimize`.
        progress: Called with the phase, and the fraction done if known.
    """
    aim = target_named(target)
    passes = select(aim.operators, fewest_nodes=aim.wants_fewest_nodes)
    job = RewriteJob(source, passes, target, progress or (lambda _phase, _fraction: None))
    candidate = job.candidate()
    return Opportunities(
        path=None if job.path is None else str(job.path),
        target=target,
        before=candidate.before.counts,
        after=Census.of(candidate.model).counts,
        passes=run_tables.pass_records(job.passes, candidate.log),
    )

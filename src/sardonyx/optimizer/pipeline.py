"""Passes in order, proven, rolled back where a proof fails, recorded."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir
from msgspec.structs import replace

from sardonyx.analysis.attention_sites import paired
from sardonyx.analysis.fingerprint import Family, fingerprint
from sardonyx.errors import UsageError
from sardonyx.ir import io
from sardonyx.ir.io import check_free
from sardonyx.ir.opsets.raising import HIGHEST
from sardonyx.ir.result import HasModel
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import WHOLE_PASS, Forbidden, Progress, RewriteJob, Source, VerifiedCandidate
from sardonyx.optimizer.options import OptimizeOptions, TuneOptions
from sardonyx.optimizer.rollback import Inputs, Verification, Verifier
from sardonyx.optimizer.tuning.options import TuningOptions
from sardonyx.passes import Pass
from sardonyx.passes.installed import available, installed
from sardonyx.records.environment import environment
from sardonyx.records.run import ArchitectureGuess, Artifact, Run
from sardonyx.records.tuning import Tuning

if TYPE_CHECKING:
    from sardonyx.optimizer.tuning.tuner import Tuner


_DEFAULTS = OptimizeOptions()


class Optimized(Run, HasModel, frozen=True):
    """A Run together with the model it made."""

    model: ir.Model | None = None


def optimize(
    source: Source,
    output: str | Path | None = None,
    *,
    target: Literal["portable", "ort"] = "portable",
    verify: Literal["each", "end", "off"] = "end",
    passes: Sequence[Pass] = (),
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    inputs: Inputs = None,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    tune: bool | TuneOptions = False,
    options: OptimizeOptions = _DEFAULTS,
    progress: Progress | None = None,
) -> Optimized:
    """Make a graph smaller and prove that it computes the same.

    Args:
        source: a path, a ModelProto or an onnx-ir Model; never changed.
        output: where to write the result; nothing is written where None.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        verify: prove after each pass, at the end, or not at all.
        passes: passes of your own to run as well, after the built-in ones and those of installed packages.
        only: names of the passes to run; all of the target's where None.
        skip: names of passes to leave out.
        inputs: an .npz file or arrays by name to prove on, besides the drawn ones.
        seed: of the drawn inputs.
        threads: of the runtime.
        force: overwrite an existing output.
        dry_run: say what would apply; prove and write nothing.
        tune: measure on this machine, and keep only what pays on it; with one thread unless `threads` says otherwise.
            `TuneOptions` say for how long and at which sizes.
        options: what is rarely needed: opsets, growth, modules to keep, runtimes, external data.
        progress: told the phase, and how far it is where that is known.

    Returns:
        The record of the run, with the optimized model as `.model`; `.to_proto()` gives it as a ModelProto.

    Raises:
        VerificationFailed: where the models differ and no rewrite is to blame.
        UsageError: where a name in `options.keep_modules` is that of no module.
        RuntimeFailure: where a model that is to be measured cannot be run.
    """
    if tune and dry_run:
        raise UsageError("a dry run measures nothing", hint="leave out one of tune and dry_run")
    began = time.perf_counter()
    file = None if output is None or dry_run else os.fspath(output)
    if file is not None:
        check_free(file, force=force)
    hashed = (verify != "off" if options.hashes is None else options.hashes) and not dry_run
    usual = select(target, only, skip, passes=passes, fewest_nodes=options.fewest_nodes)
    every = select(target, only, skip, passes=passes, fewest_nodes=True) if tune else usual
    left_out = frozenset((each.name, WHOLE_PASS) for each in every if each not in usual)
    tell: Progress = progress or (lambda _phase, _fraction: None)
    job = RewriteJob(
        source,
        every,
        target,
        tell,
        max_opset=_opset_bound(options),
        allow_growth=options.allow_growth,
        keep_modules=options.keep_modules,
    )
    how = Verification(inputs, seed, threads, options.verify_seconds, tuple(options.runtimes))
    prover = Verifier(job, how)
    with ThreadPoolExecutor(1) as pool:  # a big file is hashed while the passes run
        digest = pool.submit(io.sha256_of, job.path) if hashed and job.path is not None else None
        measuring = TuneOptions() if tune is True else tune
        wish = TuningOptions(measuring.seconds, measuring.sizes, threads or 1, seed, left_out) if measuring else None
        ended = _settle(job, prover, "off" if dry_run else verify, left_out, wish)
        found = job.artifact(digest.result() if digest is not None else None)
    if file is not None:
        job.tell("writing", None)
        io.save(ended.settled.candidate.model, file, force=force, external=options.external)
    made = run_tables.artifact(ended.settled.candidate.model, file, hashed=hashed)
    asked = {
        "target": target,
        "verify": verify,
        "only": only,
        "skip": skip,
        "seed": seed,
        "dry_run": dry_run,
        "tune": bool(tune),
        **asdict(options),
    }
    run = _recorded(job, ended, asked, found, made)
    return replace(run, seconds={**prover.seconds, **run.seconds, "total": time.perf_counter() - began})


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """What the passes came to."""

    settled: VerifiedCandidate
    likeness: ArchitectureGuess
    tuning: Tuning | None


def _settle(job: RewriteJob, prover: Verifier, mode: str, left_out: Forbidden, wish: TuningOptions | None) -> _Ended:
    """Run the passes and prove them; with a wish, keep only what pays on this machine."""
    with contextlib.ExitStack() as stack:
        tuner = stack.enter_context(_tuning(job, wish)) if wish is not None else None
        settled = prover.settle(mode, left_out)
        likeness = _likeness(settled.candidate.model)
        if tuner is None:
            return _Ended(settled, likeness, None)
        settle, convolutional = functools.partial(prover.settle, mode), likeness.family == Family.CONVOLUTIONAL
        settled, tuning = tuner.run(settled, settle, convolutional=convolutional)
        return _Ended(settled, likeness, tuning)


def _likeness(result: ir.Model) -> ArchitectureGuess:
    """What the model looks like: told from the result, which means the same as the source and has far fewer nodes."""
    found = fingerprint(result)
    return ArchitectureGuess(found.family.value, found.confidence, found.evidence)


def _recorded(job: RewriteJob, ended: _Ended, options: dict[str, Any], source: Artifact, result: Artifact) -> Optimized:
    """All there is to know of a run but how long it took."""
    settled, tuning = ended.settled, ended.tuning
    candidate = settled.candidate
    before, after = candidate.before, run_tables.snapshot(candidate.facts)
    changed = candidate.model.opset_imports.items() - job.opsets.items()
    return Optimized(
        status="done",
        environment=environment(),
        options=options,
        source=source,
        result=result,
        opset_changes={domain: (job.opset_of(domain), version) for domain, version in sorted(changed)},
        before=before.counts,
        after=after.counts,
        ops=run_tables.op_counts(before, after),
        modules=run_tables.module_counts(before, after, candidate.hierarchy),
        passes=run_tables.pass_records(job.passes, candidate.log),
        events=tuple(candidate.log.events),
        rolled_back=settled.rolled_back,
        verdict=settled.verdict,
        seconds={} if tuning is None else {"tuning": tuning.seconds},
        notes=(*job.notes, *_packages(job.passes), *run_tables.growth_notes(before.counts, candidate.log)),
        fingerprint=ended.likeness,
        tuning=tuning,
        wiring_before=before.wiring,
        wiring_after=after.wiring,
        attention=paired(before.attention, after.attention, candidate.log.refusals, settled.rolled_back),
        model=candidate.model,
    )


def _packages(passes: Sequence[Pass]) -> Iterator[str]:
    """Which of the passes came with which installed package: without it the run would be another."""
    for each in installed():
        if each.rule in passes:
            yield f"the pass {each.rule.name} is of the package {each.package}"


@contextlib.contextmanager
def _tuning(job: RewriteJob, wish: TuningOptions) -> Generator[Tuner]:
    """A tuner, and a folder for as long as it works."""
    from sardonyx.optimizer.tuning.tuner import Tuner  # only here: a run that measures nothing need not load it

    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        yield Tuner(job, wish, Path(folder))


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
    """The passes of a target, narrowed by name; one that measured slower only where asked for.

    Built-in passes come first, then those of installed packages, then `passes`.

    Raises:
        UsageError: for a name that no pass has.
        SardonyxError: where the passes of an installed package cannot be loaded.
    """
    passes = available(passes)
    known = [each.name for each in passes]
    for name in (*(only or ()), *(skip or ())):
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "`sardonyx passes` lists them"
            raise UsageError(f"there is no pass {name!r}", hint=hint)
    usual = (each.name for each in passes if fewest_nodes or not each.slower)
    wanted = set(usual if only is None else only) - set(skip or ())
    return tuple(each for each in passes if each.name in wanted and target in each.targets)

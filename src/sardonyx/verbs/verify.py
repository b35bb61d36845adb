"""Check whether two models compute the same.

Example:
  sardonyx verify model.onnx small.onnx
  sardonyx verify model.onnx small.onnx --runtime ort --runtime openvino
  sardonyx verify model.onnx small.onnx --rtol 1e-3 --atol 1e-5
  sardonyx verify models/ small/
  sardonyx verify model.onnx small.onnx --inputs batch.npz --fail-if 'max_abs>1e-5'

Runs both models on random inputs of several sizes and scales, with the runtime's own optimizations off, and compares
the names, order, types, shapes, NaN patterns and values of the outputs. The tolerance follows from the types; --rtol
and --atol add one of your own, which then decides.

Exit: 0 match, 1 failed, 2 usage, 3 no match, 4 gate not met.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sardonyx.cli import files, options
from sardonyx.cli.console import progress
from sardonyx.cli.files import is_file
from sardonyx.cli.options import Option, argument, check_readable
from sardonyx.cli.verb import Given, Verb
from sardonyx.records.progress import Progress
from sardonyx.reporting.document import View
from sardonyx.reporting.verdict import verdict_document, verdict_sentence


def _run(given: Given) -> int:
    reference: str = given.reference
    candidate: str | None = given.candidate
    many = candidate is None or given.out_dir is not None or not (is_file(reference) and is_file(candidate))
    given.check(many=many)
    if many or candidate is None:
        from sardonyx.fleet.sources import find_pairs

        files.reject({"--baseline": given.baseline})
        return given.run_many(
            find_pairs(reference, candidate),
            lambda one, pair: verdict_sentence(one, pair.text, pair.candidate_text),
            lambda one, pair: verdict_document(one, pair.text, pair.candidate_text, View(verbose=True)),
            writes=False,
        )
    check_readable([Path(reference), Path(candidate)])
    options.start_verifier()

    from sardonyx.verification import seeds_from

    with progress(not given.quiet) as report:
        verdict = given.call(
            Path(reference),
            Path(candidate),
            seeds=seeds_from(given.seed),
            seconds=given.verify_seconds,
            runtimes=given.runtime or ("ort",),
            progress=None if report is None else _without_fraction(report),
        )
    return given.finish(
        verdict,
        document=lambda: verdict_document(verdict, reference, candidate, given.view),
        sentence=verdict_sentence(verdict, reference, candidate),
        differs="" if verdict.accepted else "the two models do not compute the same",
    )


def _without_fraction(report: Progress) -> Callable[[str], None]:
    return lambda phase: report(phase, None)


VERB = Verb(
    of=("verify",),
    options=(
        argument("reference", "REFERENCE", "The reference model, a folder of them, or a manifest of pairs."),
        argument("candidate", "CANDIDATE", "The model to check, or a folder of them.", default=None),
        Option("rtol", "X", "Also compare within atol + rtol·|reference|; the exit code follows.",
            none="none, 0 with --atol", least=0.0),
        Option("atol", "X", "The absolute part of that tolerance.", none="none, 0 with --rtol", least=0.0),
        options.INPUTS, options.SEED, options.VERIFY_SECONDS, options.RUNTIME, options.THREADS, options.CUSTOM_OPS,
        options.OUT_DIR, options.FORCE, *options.MANY_MODELS, *options.PRINTING,
    ),
    record="verdict",
    run=_run,
)  # fmt: skip

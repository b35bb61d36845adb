"""`sardonyx verify`: check on random inputs that two models compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options, single
from sardonyx.cli.console import complain, progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.cli.single import is_file
from sardonyx.errors import VerificationFailed
from sardonyx.reporting.document import View
from sardonyx.reporting.verdict import verdict_document, verdict_sentence

HELP = """\b
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

Reference = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE", help="The reference model, a folder of them, or a manifest of pairs.", show_default=False
    ),
]
Candidate = Annotated[
    str | None,
    typer.Argument(metavar="CANDIDATE", help="The model to check, or a folder of them.", show_default=False),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        metavar="X",
        min=0.0,
        help="Also compare within atol + rtol·|reference|; the exit code follows. [default: none, 0 with --atol]",
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        "--atol", metavar="X", min=0.0, help="The absolute part of that tolerance. [default: none, 0 with --rtol]"
    ),
]


def verify(
    context: typer.Context,
    reference: Reference,
    candidate: Candidate = None,
    rtol: Rtol = None,
    atol: Atol = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    verify_seconds: options.VerifySeconds = 20.0,
    runtime: options.Runtimes = None,
    threads: options.Threads = None,
    custom_ops: options.CustomOps = None,
    out_dir: options.OutDir = None,
    force: options.Force = False,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    keep_going: options.KeepGoing = True,
    allow_code: options.AllowCode = False,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.verify` and print its record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    given = [Path(model) for model in (reference, candidate) if model is not None]
    many = candidate is None or out_dir is not None or not (is_file(reference) and is_file(candidate))
    gating = Gating.of("verdict", fail_if, baseline, summary, beside=(*given, inputs), many=many)
    if many:
        from sardonyx.cli.many import Shown, run_many
        from sardonyx.fleet.sources import find_pairs

        single.reject({"--baseline": baseline})
        pairs = find_pairs(reference, candidate)
        shown = Shown(
            lambda one, pair: verdict_sentence(one, pair.text, pair.candidate_text),
            lambda one, pair: verdict_document(one, pair.text, pair.candidate_text, View(verbose=True)),
        )
        return run_many(context, pairs, gating, shown, writes=False)
    check_readable(given)

    options.start_verifier()

    from sardonyx import verify as run_verify
    from sardonyx.verification import seeds_from

    with progress(not quiet) as report:
        verdict = run_verify(
            *given,
            rtol=rtol,
            atol=atol,
            inputs=inputs,
            seeds=seeds_from(seed),
            seconds=verify_seconds,
            runtimes=runtime or (options.RuntimeName.ORT,),
            threads=threads,
            progress=None if report is None else lambda text: report(text, None),
        )
    pair = (str(reference), str(candidate))
    show(verdict.to_json, lambda: verdict_document(verdict, *pair, View(verbose)), as_json=as_json, quiet=quiet)
    if not verdict.accepted and as_json:  # the text output says so itself
        complain(VerificationFailed("the two models do not compute the same"))
    sentence = verdict_sentence(verdict, *pair)
    return gating.outcome(verdict, sentence, failed=0 if verdict.accepted else VerificationFailed.exit_code)

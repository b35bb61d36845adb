"""`sardonyx verify`: check on random inputs that two models compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import complain, progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.errors import VerificationFailed
from sardonyx.reporting.document import View
from sardonyx.reporting.verdict import verdict_document, verdict_sentence

HELP = """\b
Example:
  sardonyx verify model.onnx small.onnx
  sardonyx verify model.onnx small.onnx --runtime ort --runtime openvino
  sardonyx verify model.onnx small.onnx --rtol 1e-3 --atol 1e-5
  sardonyx verify model.onnx small.onnx --inputs batch.npz --fail-if 'max_abs>1e-5'

Runs both models on random inputs of several sizes and scales, with the runtime's own optimizations off, and compares
the names, order, types, shapes, NaN patterns and values of the outputs. The tolerance follows from the types; --rtol
and --atol add one of your own, which then decides.

Exit: 0 match, 1 failed, 2 usage, 3 no match, 4 gate not met.
"""

Reference = Annotated[
    Path, typer.Argument(metavar="REFERENCE", help="The reference model.", callback=check_readable, show_default=False)
]
Candidate = Annotated[
    Path, typer.Argument(metavar="CANDIDATE", help="The model to check.", callback=check_readable, show_default=False)
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
    reference: Reference,
    candidate: Candidate,
    rtol: Rtol = None,
    atol: Atol = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    verify_seconds: options.VerifySeconds = 20.0,
    runtime: options.Runtimes = None,
    threads: options.Threads = None,
    custom_ops: options.CustomOps = None,
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
    gating = Gating.of("verdict", fail_if, baseline, summary, beside=(reference, candidate, inputs))

    options.start_verifier()

    from sardonyx import verify as run_verify
    from sardonyx.verification import seeds_from

    with progress(not quiet) as report:
        verdict = run_verify(
            reference,
            candidate,
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

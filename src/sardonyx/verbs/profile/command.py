"""Show where ONNX files spend their time, module by module.

Example:
  sardonyx profile model.onnx
  sardonyx profile model.onnx optimized.onnx --size sequence=256 --svg time.svg
  sardonyx profile decoder.onnx --at sequence=128,past_sequence=0 --at sequence=1,past_sequence=128
  sardonyx profile model.onnx --trace trace.json      # open it in ui.perfetto.dev
  sardonyx profile model.onnx --fail-if 'attributed<97%' --format csv > times.csv

Runs each file with the optimizations of ONNX Runtime and sums the time of its kernels by the modules of the original
network. A kernel that the runtime fused from several nodes is traced back to them. The times have no confidence
interval: `sardonyx bench` finds out whether a file is faster. docs/profile.md explains the method.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.cli import options
from sardonyx.cli.options import Option, argument, file, listed, parse_point, svg, table_format
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.common.atomic_write import write_whole
from sardonyx.records.bench import Profile


def _run(given: Given) -> int:
    given.check()
    profile = given.call()
    if given.trace is not None:
        from sardonyx.reporting.plots.profile import trace

        write_whole(given.trace, trace(profile), force=given.force)
    return given.finish(profile)


def _svg(profile: Profile) -> str:
    from sardonyx.reporting.plots.profile import icicle_svg

    return icicle_svg(profile, " → ".join(model.label for model in profile.models))


VERB = Verb(
    of=("profile",),
    options=(
        argument("models", "MODEL...", "ONNX files, before and after.", list[Path], checked=True),
        options.SIZES,
        listed("at", "DIM=N,…", "Sizes of dynamic dimensions to show in a column of their own. Repeatable.",
            none="one column a file", read=lambda texts: list(map(parse_point, texts))),
        options.TIMED_THREADS, options.CUSTOM_OPS, options.PROVIDER, options.LEVEL,
        Option("runs", "N", "Number of runs; the median is shown.", none="as many as fit into a few seconds", least=1),
        options.DEPTH,
        table_format("every module and kernel"),
        file("trace", "Also write a trace of one run of each file, for ui.perfetto.dev.", group=options.OUTPUT,
            writes=True),
        svg("the time by module"),
        options.RECORD, options.FORCE, options.SEED, *options.PRINTING,
    ),
    record="profile",
    document=later("sardonyx.reporting.profile:profile_document"),
    sentence=later("sardonyx.reporting.profile:profile_sentence"),
    csv=later("sardonyx.reporting.profile:profile_csv"),
    svg=_svg,
    run=_run,
)  # fmt: skip

"""Count operations, FLOPs, bytes moved and peak memory.

Example:
  sardonyx analyze torchvision:vit_b_16
  sardonyx analyze hf-config:BertConfig --dynamic auto --fail-if 'peak_mb>512'
  sardonyx analyze model.onnx optimized.onnx --size sequence=256 --svg memory.svg
  sardonyx analyze model.py:build --format csv > costs.csv

SOURCE is any source that `export` accepts, or an ONNX file; several ONNX files are shown side by side. A torch model is
shown in three forms: as it is (standard), with every attention decomposed into primitive operations (decomposed), and
with every attention as one kernel (fused). It is traced without data. docs/memory.md defines each number.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

from msgspec.structs import replace

from sardonyx.cli import options
from sardonyx.cli.options import argument, choice, svg, table_format
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.records.analysis import Analysis


def _run(given: Given) -> int:
    given.reject("input_specs", "inputs")
    given.check()

    from sardonyx.records.input_specs import parse_dynamic

    inputs = options.parse_example(given.input_specs, given.inputs)
    dynamic = parse_dynamic(given.dynamic) if given.dynamic else None
    first, *beside = given.sources
    return given.finish(given.call(first, inputs=inputs, beside=beside, dynamic=dynamic))


def _svg(analysis: Analysis) -> str:
    from sardonyx.reporting.plots.charts import timeline_svg

    timelines = {form.name: form.memory.timeline for form in analysis.forms}
    return timeline_svg(timelines, " and ".join(source.label for source in analysis.sources))


VERB = Verb(
    of=("analyze",),
    options=(
        replace(argument("sources", "SOURCE...", "A model, or several ONNX files to show side by side.", list[str]),
            read=options.check_sources),
        options.TASK,
        choice("dtype", options.DTYPES, "Floating-point type of a torch model; keep: the type it was saved in.",
            default="keep"),
        options.INPUT, options.INPUT_FILE, options.DYNAMIC, options.SIZES,
        options.DEPTH,
        table_format("all numbers unrounded"),
        svg("memory over time"),
        options.RECORD, options.FORCE, options.SEED, *options.PRINTING,
    ),
    record="analysis",
    document=later("sardonyx.reporting.analysis:analysis_document"),
    sentence=later("sardonyx.reporting.analysis:analysis_sentence"),
    csv=later("sardonyx.reporting.analysis:analysis_csv"),
    svg=_svg,
    translated=True,
    run=_run,
)  # fmt: skip

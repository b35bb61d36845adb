"""A handmade Run: every field filled, numbers that add up, no model needed."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_graphs import (
    LAYERS,
    nodes_after,
    nodes_before,
    sample_attention,
    sample_events,
    sample_modules,
    sample_ops,
    wiring_of,
)
from sardonyx.records.run import (
    Accuracy,
    Artifact,
    Counts,
    Environment,
    OutputDifference,
    PassRecord,
    RefusalGroup,
    RolledBack,
    Run,
    Trial,
    Verdict,
)


def sample_verdict() -> Verdict:
    trials = tuple(
        Trial(seed, {"batch": 1 + seed % 3, "seq": 5 + seed}, "normal" if seed else "wide", True, ())
        for seed in range(12)
    )
    outputs = (
        OutputDifference("last_hidden_state", "float32", 2.1e-07, 3.4e-06, 4.0, 1e-05, 1e-06, True, 2.1e-07, 1.75e-06),
        OutputDifference("pooler_output", "float32", 0.0, 0.0, 0.0, 1e-05, 1e-06, True),
    )
    reference = "onnxruntime 1.31.1, optimizations off"
    return Verdict(True, reference, Accuracy.REASSOCIATES, trials, outputs, (), ("dims tried: batch, seq",), 1.25)


def failed_verdict() -> Verdict:
    bad = OutputDifference("pooler_output", "float32", 0.5, 12.0, 9e6, 1e-05, 1e-06, False)
    good = sample_verdict()
    return replace(
        good, passed=False, outputs=(good.outputs[0], bad), failures=("pooler_output differs by 0.5 with seed 3",)
    )


def sample_run() -> Run:
    return Run(
        status="done",
        environment=Environment("0.1.0", "3.11.15", "Linux-x86_64", 2, {"onnx": "1.23.2", "onnxruntime": "1.31.1"}),
        options={"target": "portable", "verify": "end", "dry_run": False},
        source=Artifact("model.onnx", "ab" * 32, 17_600_000, 7, {"": 14}),
        result=Artifact("small.onnx", "cd" * 32, 17_500_000, 8, {"": 17}),
        opset_changes={"": (14, 17)},
        before=Counts(324, 96, 39, 17_412_345),
        after=Counts(187, 0, 45, 17_398_000),
        ops=sample_ops(),
        modules=sample_modules(),
        passes=_passes(),
        events=sample_events(),
        rolled_back=(
            RolledBack("fuse-gemm", "/pooler/MatMul_out", "pooler", "pooler_output differs by 0.5"),
            RolledBack("merge-reshapes", "*", "", "last_hidden_state has NaN where the reference has none"),
        ),
        verdict=sample_verdict(),
        seconds={"total": 2.0, "passes": 0.4, "verification": 1.25},
        wiring_before=wiring_of(nodes_before()),
        wiring_after=wiring_of(nodes_after()),
        attention=sample_attention(),
    )


def _by_module(**parts: int) -> dict[str, int]:
    """This count in the module of that name in every layer."""
    return {f"encoder.layer.{index}.{part}": count for part, count in parts.items() for index in range(LAYERS)}


def _passes() -> tuple[PassRecord, ...]:
    return (
        PassRecord(
            name="eliminate-identity",
            algebra="Identity(x) => x",
            accuracy=Accuracy.EXACT,
            rewrites=25,
            nodes=-25,
            constants=0,
            initializers=0,
            bytes=0,
            seconds=0.0123,
            modules={**_by_module(attention=1, output=1), "pooler": 1},
            refusals=(),
            about="A copy computes nothing; it is kept where an output of the graph needs it for its name.",
        ),
        PassRecord(
            name="fold-constants",
            algebra="f(constants) => constant",
            accuracy=Accuracy.EXACT,
            rewrites=100,
            nodes=-100,
            constants=-96,
            initializers=6,
            bytes=-14_345,
            seconds=0.3,
            modules={"": 16, **_by_module(attention=6, output=1)},
            refusals=(
                RefusalGroup(
                    "would grow the model past the byte budget",
                    3,
                    ("/encoder/Expand",),
                    {"encoder.layer.0.attention": 2, "pooler": 1},
                ),
            ),
            about="What does not depend on an input is computed once, here.",
        ),
        PassRecord(
            name="fuse-gemm",
            algebra="Add(MatMul(x, w), b) => Gemm(x, w, b)",
            accuracy=Accuracy.REASSOCIATES,
            rewrites=12,
            nodes=-12,
            constants=0,
            initializers=0,
            bytes=0,
            seconds=0.004,
            modules=_by_module(output=1),
            refusals=(RefusalGroup("more than one reads the product", 12, ("/x", "/y"), _by_module(attention=1)),),
        ),
        PassRecord(
            "fuse-conv-batch-norm",
            "BatchNormalization(Conv(x)) => Conv(x)",
            Accuracy.REASSOCIATES,
            0,
            0,
            0,
            0,
            0,
            0.001,
            {},
            (RefusalGroup("the weight is shared", 2, (), {"": 2}),),
        ),
        PassRecord("merge-reshapes", "Reshape(Reshape(x)) => Reshape(x)", Accuracy.EXACT, 0, 0, 0, 0, 0, 0.0, {}, ()),
    )

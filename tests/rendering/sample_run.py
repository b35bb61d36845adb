"""A Run built by hand: every field filled, numbers that add up, nothing that needs a model."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.record import (
    Accuracy,
    Artifact,
    Counts,
    Environment,
    Event,
    Kind,
    ModuleCount,
    NodeRef,
    OpCount,
    OutputDifference,
    PassRecord,
    RefusalGroup,
    RolledBack,
    Run,
    Trial,
    Verdict,
)

LAYERS = 12


def sample_verdict() -> Verdict:
    trials = tuple(
        Trial(seed, {"batch": 1 + seed % 3, "seq": 5 + seed}, "normal" if seed else "wide", True, ())
        for seed in range(12)
    )
    outputs = (
        OutputDifference("last_hidden_state", "float32", 2.1e-07, 3.4e-06, 4.0, 1e-05, 1e-06, True),
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
    layers = [
        ModuleCount(f"encoder.layer.{index}.{part}", f"/BertModel/BertLayer.{index}", before, after)
        for index in range(LAYERS)
        for part, before, after in (("attention", 16, 9), ("output", 8, 5))
    ]
    # Layer tags differ by their number, as tags do; what folds layers is their shape.
    modules = (ModuleCount("", "/BertModel", 30, 14), ModuleCount("pooler", "/BertModel/BertPooler", 6, 5), *layers)
    return Run(
        status="done",
        environment=Environment("0.1.0", "3.11.15", "Linux-x86_64", 2, {"onnx": "1.23.2", "onnxruntime": "1.31.1"}),
        options={"target": "portable", "verify": "end", "dry_run": False},
        source=Artifact("model.onnx", "ab" * 32, 17_600_000, 7, {"": 14}),
        result=Artifact("small.onnx", "cd" * 32, 17_500_000, 8, {"": 17}),
        opset_changes={"": (14, 17)},
        before=Counts(324, 96, 39, 17_412_345),
        after=Counts(187, 0, 45, 17_398_000),
        ops=(
            OpCount("Add", 60, 60),
            OpCount("Constant", 96, 0),
            OpCount("Identity", 25, 0),
            OpCount("MatMul", 76, 76),
            OpCount("Gemm", 1, 13),
            OpCount("Transpose", 162, 38),
        ),
        modules=modules,
        passes=_passes(),
        events=(
            Event(
                "eliminate-identity",
                Kind.BYPASS,
                "y",
                (NodeRef("/encoder/Identity", "Identity"),),
                (),
                ("encoder",),
                "encoder",
                "",
                "eliminate_identity.py:12",
            ),
        ),
        rolled_back=(
            RolledBack("fuse-gemm", "/pooler/MatMul_out", "pooler", "pooler_output differs by 0.5"),
            RolledBack("merge-reshapes", "*", "", "last_hidden_state has NaN where the reference has none"),
        ),
        verdict=sample_verdict(),
        seconds={"total": 2.0, "passes": 0.4, "proof": 1.25},
    )


def _passes() -> tuple[PassRecord, ...]:
    return (
        PassRecord(
            "eliminate-identity",
            "Identity(x) => x",
            Accuracy.EXACT,
            25,
            -25,
            0,
            0,
            0,
            0.0123,
            {"encoder.layer.0": 2, "encoder.layer.1": 2, "": 21},
            (),
        ),
        PassRecord(
            "fold-constants",
            "f(constants) => constant",
            Accuracy.EXACT,
            112,
            -112,
            -96,
            6,
            -14_345,
            0.3,
            {"encoder.layer.0.attention": 112},
            (RefusalGroup("would grow the model past the byte budget", 3, ("/encoder/Expand",)),),
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
            (RefusalGroup("the weight is shared", 2, ()),),
        ),
        PassRecord("merge-reshapes", "Reshape(Reshape(x)) => Reshape(x)", Accuracy.EXACT, 0, 0, 0, 0, 0, 0.0, {}, ()),
    )

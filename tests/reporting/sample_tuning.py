"""A handmade Tuning: one fusion undone, one form added, and every other outcome of a unit."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import ArchitectureGuess, Decision, RelativeTime, Run, Tuning, TuningMeasurement


def sample_tuning() -> Tuning:
    attention = ("fuse-attention", "merge-attention-heads")
    return Tuning(
        chosen="tuned",
        why="it is the faster one",
        standing=(
            RelativeTime("source", 324, 25.0, 1.0, 1.0, 1.0, "no difference"),
            RelativeTime("untuned", 187, 21.25, 0.85, 0.83, 0.87, "faster"),
            RelativeTime("tuned", 196, 19.5, 0.78, 0.765, 0.8, "faster"),
        ),
        gain=0.918,
        floor=0.012,
        decisions=(
            Decision("fuse-attention", ("fuse-attention",), "attention", 12, "undone", 0),
            Decision("merge-attention-heads", ("merge-attention-heads",), "attention", 12, "kept", 1),
            Decision("fuse-layer-norm", ("fuse-layer-norm",), "norms", 25, "kept", 2),
            Decision("fuse-gelu", ("fuse-gelu",), "norms", 12, "kept", 2),
            Decision("fuse-skip-layer-norm", ("fuse-skip-layer-norm",), "left out", 0, "added", 3),
            Decision("fuse-skip-rms-norm", ("fuse-skip-rms-norm",), "left out", 0, "left out", 4),
            Decision("cleanup passes", ("eliminate-identity", "eliminate-dead-nodes"), "cleanup", 25, "kept", 5),
            Decision("merge-reshapes", ("merge-reshapes",), "layout", 6, "not examined", None),
        ),
        questions=(
            TuningMeasurement(attention, "undo", "faster", 0.93, 0.92, 0.945, 0.012, 31, 5.2, True),
            TuningMeasurement(attention[1:], "restore", "no difference", 1.001, 0.996, 1.006, 0.01, 44, 5.1, True),
            TuningMeasurement(
                ("fuse-layer-norm", "fuse-gelu"), "undo", "slower", 1.2, 1.18, 1.22, 0.011, 12, 3.4, False
            ),
            TuningMeasurement(("fuse-skip-layer-norm",), "add", "faster", 0.97, 0.96, 0.98, 0.01, 40, 4.9, True),
            TuningMeasurement(("fuse-skip-rms-norm",), "add", "same kernels", None, None, None, None, 0, 0.7, False),
            TuningMeasurement(("cleanup passes",), "undo", "cannot run", None, None, None, None, 0, 0.4, False),
        ),
        sizes={"batch": 1, "seq": 128},
        threads=1,
        provider="cpu",
        clock="cpu",
        budget=30.0,
        seconds=28.4,
        load=0.3,
    )


def tuned_run() -> Run:
    return replace(
        sample_run(),
        fingerprint=ArchitectureGuess("encoder", 1.0, ("12 attentions", "none causal")),
        tuning=sample_tuning(),
    )

"""Guess the architecture family of a model from its structure alone: names and weights are not read, nothing is run."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.analysis.fingerprint.features import features
from sardonyx.analysis.fingerprint.rules import THRESHOLDS, Thresholds, classify
from sardonyx.records import gc_pause
from sardonyx.records.inspection import Family, Features, Fingerprint

__all__ = ["THRESHOLDS", "Family", "Features", "Fingerprint", "Thresholds", "classify", "features", "fingerprint"]


def fingerprint(model: ir.Model) -> Fingerprint:
    """Return the family of a model, the confidence of the guess and the evidence; the model is not changed."""
    with gc_pause.paused():  # all objects allocated here live until the end
        return classify(features(model))

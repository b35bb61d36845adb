"""The family of a model from structure alone: no names, no weights, nothing run."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.analysis.fingerprint.features import features
from sardonyx.analysis.fingerprint.rules import BORDERS, Borders, judge
from sardonyx.records import gc_pause
from sardonyx.records.inspection import Family, Features, Fingerprint

__all__ = ["BORDERS", "Borders", "Family", "Features", "Fingerprint", "features", "fingerprint", "judge"]


def fingerprint(model: ir.Model) -> Fingerprint:
    """What kind of network a model is, how sure that is, and why; the model is not changed."""
    with gc_pause.paused():  # nothing made here is garbage before the end
        return judge(features(model))

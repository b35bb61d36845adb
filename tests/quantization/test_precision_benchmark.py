"""A slice of benchmarks/precision.py: a model that is trained here, judged on data that quantization has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import precision
import precision_models
import precision_table
from precision_models import Case

FORMS = ("int8", "quantize_dynamic, per channel")


def _clusters() -> tuple[np.ndarray, np.ndarray]:
    """1,200 noisy images of ten classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 1200)
    images = rng.normal(0, 1, (10, 1, 8, 8))[labels] + rng.normal(0, 0.7, (1200, 1, 8, 8))
    return images.astype(np.float32), labels


def _broken(case: Case, path: Path) -> None:
    raise RuntimeError(f"{case.name} has no {path.stem}")


@pytest.mark.campaign
def test_a_trained_model_stays_within_the_budget_on_unseen_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(precision.FORMS, "int4", _broken)
    store = precision.Store(tmp_path, tmp_path)
    empty = Case("digits-mlp", "MLP", "trained here", "clusters", tmp_path / "models" / "digits-mlp")
    case = precision_models.image_case(empty, precision_models.mlp, *_clusters(), epochs=2, samples=64)
    precision.make(store, case, (*FORMS, "int4"), again=False)
    rows = precision.rows_of(store, [case])[case.name]
    plain, ours, peer = (rows[form] for form in ("float32", *FORMS))
    assert (plain.loss, plain.result.top1, plain.result.rows) == (0.0, 1.0, 128)
    assert ours.within()
    assert 0 < ours.loss < 0.01
    assert ours.share < 0.28
    assert ours.loss <= 1.01 * peer.loss
    labels = _clusters()[1][1000:1128]
    scores = [outputs[0].argmax() for outputs in precision.outputs_of(store.file(case, "int8"), case.samples("unseen"))]
    assert np.mean(scores == labels) > 0.95  # it is trained: the samples that it has not seen are classified
    assert precision_models.load(case.folder) == case
    page = precision_table.page([case], precision.rows_of(store, [case]), "")
    assert "1 trained models, 0 of them of packages" in page
    assert "quantize_dynamic, per channel" in page
    assert "RuntimeError: digits-mlp has no int4" in page
    monkeypatch.setitem(precision.FORMS, "int8", _broken)
    precision.make(store, case, FORMS, again=False)  # nothing is missing
    assert precision.rows_of(store, [case])[case.name]["int8"] == ours


def test_results_are_stored_for_each_model_and_form(tmp_path: Path) -> None:
    store = precision.Store(tmp_path, tmp_path)
    store.save(precision.Result("digits-mlp", "int8", 7))
    store.save_timing("digits-mlp", "int8", {"1 image": precision.Timing(1, 0.5, 0.4, 0.6, "faster", 2)})
    found = store.result("digits-mlp", "int8")
    assert found is not None
    assert found.bytes == 7
    assert store.result("digits-mlp", "int4") is None
    assert store.timing("digits-mlp", "int8")["1 image"].finding == "faster"
    assert store.timing("digits-mlp", "int4") == {}

"""The optimizer writes the same bytes with every Python, library and number of threads, and on every processor.

The record holds 30 files for two targets. If a change of the optimizer is meant to change what it writes, run
`python tests/same_bytes.py`.
"""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest

import same_bytes

RECORD = json.loads(same_bytes.RECORD.read_text())


@pytest.mark.medium
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bytes_are_those_on_record(threads: int, tmp_path: Path) -> None:
    assert same_bytes.digests(same_bytes.EXACT, tmp_path, threads) == RECORD["exact"]


@pytest.mark.skipif(platform.machine() != RECORD["machine"], reason="kernels may round otherwise on this processor")
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_fold_to_the_bytes_on_record(threads: int, tmp_path: Path) -> None:
    assert same_bytes.digests(same_bytes.BY_KERNELS, tmp_path, threads) == RECORD["by_kernels"]


def test_the_record_holds_what_kernels_computed(tmp_path: Path) -> None:
    """Otherwise the comparison would say nothing about folding."""
    same_bytes.digests(same_bytes.BY_KERNELS, tmp_path)
    for path in tmp_path.iterdir():
        assert len(onnx.load(path).graph.node) <= 2


def test_results_do_not_name_library_versions(tmp_path: Path) -> None:
    same_bytes.digests({"mlp": same_bytes.EXACT["mlp"]}, tmp_path)
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "mlp.ort.onnx").metadata_props}
    assert metadata.keys() == {"sardonyx.version", "sardonyx.options"}
    assert metadata["sardonyx.version"] == version("sardonyx")
    assert json.loads(metadata["sardonyx.options"]) == {"optimize": {"seed": 0, "target": "ort", "verify": "off"}}

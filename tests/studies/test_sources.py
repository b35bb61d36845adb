"""Files and folders become subjects with unique names, identified by all their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.errors import UsageError
from sardonyx.fleet.sources import digest
from sardonyx.fleet.storage import open_store
from sardonyx.records.inspection import Family
from sardonyx.verbs.study import runner
from sardonyx.verbs.study import runner as zoo
from sardonyx.verbs.study.experiment import StudyOptions

TEXT = '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Add(x, w) }'


def save(path: Path, weight: float = 1.0, *, external: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(2, weight, np.float32), "w"))
    location = f"{path.stem}.bin" if external else None
    (path.parent / f"{path.stem}.bin").unlink(missing_ok=True)
    onnx.save(proto, path, save_as_external_data=external, location=location, size_threshold=0)
    return path


def test_folders_are_searched_in_order_and_files_used_once(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "below/c.onnx", "out/models/own.onnx"):
        save(tmp_path / name)
    subjects = runner.find_subjects([tmp_path / "b.onnx", tmp_path], exclude=tmp_path / "out")
    assert [subject.name for subject in subjects] == ["b", "a", "c"]


def test_files_with_the_same_name_are_labelled_by_path(tmp_path: Path) -> None:
    save(tmp_path / "one/model.onnx")
    save(tmp_path / "two/model.onnx")
    names = [subject.name for subject in runner.find_subjects([tmp_path], exclude=tmp_path / "out")]
    assert names == [str(tmp_path / "one/model"), str(tmp_path / "two/model")]


def test_a_missing_source_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        runner.find_subjects([tmp_path / "nothing.onnx"], exclude=tmp_path)
    with pytest.raises(UsageError, match="contains no ONNX file"):
        runner.find_subjects([tmp_path], exclude=tmp_path / "out")


@pytest.mark.parametrize("external", [False, True])
def test_other_weights_are_another_model(tmp_path: Path, external: bool) -> None:
    before = digest(str(save(tmp_path / "model.onnx", 1.0, external=external)))
    assert digest(str(save(tmp_path / "model.onnx", 1.0, external=external))) == before
    assert digest(str(save(tmp_path / "model.onnx", 2.0, external=external))) != before


def test_a_file_that_is_no_model_has_a_digest_too(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    assert digest(str(tmp_path / "broken.onnx"))


def test_the_zoo_plans_one_export_a_model_and_knows_its_own_files(tmp_path: Path) -> None:
    producer = zoo.ZooExport(zoo.recipes("small"))
    store = open_store(tmp_path)
    subjects = producer.subjects(store)
    assert len({subject.name for subject in subjects}) == len(subjects) >= 10
    assert {subject.family for subject in subjects} == set(Family) - {Family.OTHER, Family.ENCODER_DECODER}
    mlp = next(subject for subject in subjects if subject.name == "mlp")
    mlp.path.parent.mkdir()
    (cell,) = producer.cells(mlp, StudyOptions())
    answer = producer.run(cell, mlp)
    assert producer.is_there(store, mlp, answer)
    first = mlp.path.read_bytes()
    assert producer.run(cell, mlp) == answer  # an export that is done again is the same file
    assert mlp.path.read_bytes() == first
    mlp.path.write_bytes(first + b"\0")
    assert not producer.is_there(store, mlp, answer)
    with pytest.raises(UsageError, match="no zoo 'large'"):
        zoo.recipes("large")

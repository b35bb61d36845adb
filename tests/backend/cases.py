"""Every test case of the onnx package in one form: a model, inputs, and the expected outputs.

Two sources: the 1,884 node cases, generated in memory, and the models stored in the wheel together with their data.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from filelock import FileLock
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase

_OWN = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
KEPT = Path(__file__).parents[2] / ".pytest_cache" / f"node-cases-{onnx.__version__}-{_OWN}.pickle"
_PROTOS = {"tensor_type": onnx.TensorProto, "sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}


@dataclass(frozen=True)
class Case:
    """A model, and pairs of inputs by name and expected outputs."""

    name: str
    model: onnx.ModelProto
    data: tuple[tuple[dict[str, Any], list[Any]], ...]
    rtol: float
    atol: float


@functools.cache
def node_cases() -> tuple[Case, ...]:
    """All node cases. Generating them takes 11 CPU seconds, so processes and later runs read them from a file."""
    spec = importlib.util.find_spec("onnx.backend.test.case.node")
    KEPT.parent.mkdir(exist_ok=True)
    with FileLock(f"{KEPT}.lock"):
        if not KEPT.exists() or spec is None or spec.origin is None:  # left out by --quick
            unfinished = KEPT.with_suffix(".part")
            unfinished.write_bytes(pickle.dumps(_node_cases()))
            unfinished.rename(KEPT)
        return pickle.loads(KEPT.read_bytes())


def _node_cases() -> tuple[Case, ...]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return tuple(_generated(case) for case in collect_testcases(None))


def _generated(case: TestCase) -> Case:
    model = case.model
    assert model is not None
    data = tuple(
        (_named(model, [_plain(value) for value in inputs]), [_plain(value) for value in outputs])
        for inputs, outputs in case.data_sets or ()
    )
    return Case(case.name, model, data, case.rtol, case.atol)


@functools.cache
def shipped_cases() -> tuple[Case, ...]:
    """All models in the wheel. The light ones have no stored inputs and get the dummy values of onnx."""
    return (*_stored(), *_light())


def _stored() -> Iterator[Case]:
    for path in sorted(DATA.glob("*/*/model.onnx")):
        model = onnx.load(path)
        free = _free_inputs(model)
        data = tuple(
            (_named(model, _read_all(folder, "input", free)), _read_all(folder, "output", list(model.graph.output)))
            for folder in sorted(path.parent.glob("test_data_set_*"))
        )
        yield Case(f"{path.parent.parent.name}/{path.parent.name}", model, data, 1e-3, 1e-7)


def _light() -> Iterator[Case]:
    for path in sorted((DATA / "light").glob("*.onnx")):
        model = onnx.load(path)
        inputs = {value.name: Runner.generate_dummy_data(value) for value in _free_inputs(model)}
        expected = [_read(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0])]
        yield Case(f"light/{path.stem}", model, ((inputs, expected),), 1e-3, 1e-6)


def _free_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    preset = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in preset]


def _named(model: onnx.ModelProto, values: list[Any]) -> dict[str, Any]:
    """Values by input name, assigned in order; a case may omit trailing optional inputs."""
    free = [value.name for value in _free_inputs(model)]
    names = free if len(free) == len(values) else [value.name for value in model.graph.input]
    return dict(zip(names, values, strict=False))


def _read_all(folder: Path, role: str, declared: list[onnx.ValueInfoProto]) -> list[Any]:
    count = len(list(folder.glob(f"{role}_*.pb")))
    return [_read(folder / f"{role}_{index}.pb", declared[index]) for index in range(count)]


def _read(path: Path, declared: onnx.ValueInfoProto) -> Any:
    kind = declared.type.WhichOneof("value")
    assert kind is not None
    proto = _PROTOS[kind]()
    proto.ParseFromString(path.read_bytes())
    return _plain(proto)


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None else np.asarray(value)

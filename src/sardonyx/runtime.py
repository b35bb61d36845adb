"""Everything that runs a model: ONNX Runtime where it can, the reference evaluator of onnx where it cannot.

This is the only importer of onnxruntime. Importing this file costs nothing: the runtime is loaded with the first model.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from sardonyx.errors import RuntimeFailure

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = "Array | list[Value] | None"
Feeds: TypeAlias = Mapping[str, Value]
Source: TypeAlias = "str | Path | bytes | onnx.ModelProto"

_LARGEST_PROTOBUF = 2**31 - 1
_QUIET = 4  # the runtime's log severity "fatal": errors reach us as exceptions


class Engine(Protocol):
    """A loaded model that can be run."""

    @property
    def name(self) -> str:
        """Which program runs the model, and how."""
        ...

    def run(self, feeds: Feeds) -> list[Value]:
        """All graph outputs in order; raises RuntimeFailure where the model rejects the feeds."""
        ...


class Session:
    """A model in ONNX Runtime on the CPU, its graph optimizations off unless asked for."""

    def __init__(self, source: Source, *, optimize: bool = False, threads: int | None = None) -> None:
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = _QUIET
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.enable_mem_pattern = False  # sizes change from run to run
        if not optimize:  # a weight that a rewrite makes constant must not change which kernel reads it
            options.add_session_config_entry("session.disable_prepacking", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        try:
            self._session: Any = ort.InferenceSession(_loadable(source), options, providers=["CPUExecutionProvider"])
        except _ort_errors() as error:
            raise RuntimeFailure(
                f"ONNX Runtime cannot load the model: {_one_line(error)}",
                hint="ONNX Runtime 1.31 takes IR versions up to 13 and opsets up to 26",
            ) from error
        self._input_types: dict[str, str] = {i.name: i.type for i in self._session.get_inputs()}
        self._output_types: list[str] = [o.type for o in self._session.get_outputs()]
        self._has_bare_types = any(_bare_type(t) for t in (*self._input_types.values(), *self._output_types))
        self._optimize = optimize

    @property
    def name(self) -> str:
        """The runtime, its version and whether it optimizes."""
        state = "on" if self._optimize else "off"
        return f"onnxruntime {importlib.metadata.version('onnxruntime')}, optimizations {state}"

    def run(self, feeds: Feeds) -> list[Value]:
        """All graph outputs in order."""
        try:
            if self._has_bare_types:
                return self._run_bare(feeds)
            return list(self._session.run(None, dict(feeds), _run_options()))
        except _ort_errors() as error:
            raise RuntimeFailure(f"ONNX Runtime cannot run the model: {_one_line(error)}") from error

    def _run_bare(self, feeds: Feeds) -> list[Value]:
        """Run with types numpy has no name for in the runtime (bfloat16, float8, int4 …), through raw memory."""
        given = {name: _to_ort_value(value, self._input_types.get(name, "")) for name, value in feeds.items()}
        results = self._session.run_with_ort_values(None, given, _run_options())
        return [_from_ort_value(result) for result in results]


class ReferenceSession:
    """A model in the reference evaluator of the onnx package: slow, and knows every operator of the standard."""

    def __init__(self, source: Source) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        def build() -> Any:
            return ReferenceEvaluator(_as_proto(source, onnx))

        self._evaluator: Any = _interpreted(build, "load")

    @property
    def name(self) -> str:
        """The evaluator and its version."""
        return f"onnx.reference {importlib.metadata.version('onnx')}"

    def run(self, feeds: Feeds) -> list[Value]:
        """All graph outputs in order."""
        with np.errstate(all="ignore"):
            results: list[Any] = _interpreted(lambda: self._evaluator.run(None, dict(feeds)), "run")
        return [_plain(result) for result in results]


def open_engine(source: Source, *, optimize: bool = False, threads: int | None = None) -> Engine:
    """ONNX Runtime with the model, or the reference evaluator where the runtime does not take it."""
    try:
        return Session(source, optimize=optimize, threads=threads)
    except RuntimeFailure as refusal:
        try:
            return ReferenceSession(source)
        except RuntimeFailure as second:
            raise RuntimeFailure(f"{refusal.message}; {second.message}", hint=refusal.hint) from second


def evaluate(model: onnx.ModelProto) -> list[Array]:
    """All outputs of a model without inputs, computed once: what constant folding needs.

    ONNX Runtime comes first and the reference evaluator second, for loading and for running.
    """
    try:
        results = Session(model, threads=1).run({})
    except RuntimeFailure as refusal:
        try:
            results = ReferenceSession(model).run({})
        except RuntimeFailure as second:
            raise RuntimeFailure(f"{refusal.message}; {second.message}") from second
    arrays = [result for result in results if isinstance(result, np.ndarray)]
    if len(arrays) != len(results):
        raise RuntimeFailure("an output of the model is not a tensor")
    return arrays


def _onnxruntime() -> Any:
    ort: Any = importlib.import_module("onnxruntime")
    ort.set_default_logger_severity(_QUIET)
    return ort


def _run_options() -> Any:
    options = _onnxruntime().RunOptions()
    options.log_severity_level = _QUIET
    return options


def _ort_errors() -> tuple[type[Exception], ...]:
    """The runtime's own exceptions, and those its Python layer raises for feeds it cannot use."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    names = ("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf")
    more = ("ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail")
    own: list[type[Exception]] = [getattr(state, name) for name in (*names, *more)]
    return (*own, RuntimeError, ValueError, TypeError)


def _loadable(source: Source) -> str | bytes:
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return source
    if source.ByteSize() > _LARGEST_PROTOBUF:
        raise RuntimeFailure("a model over 2 GB cannot be run from memory", hint="save it and pass its path")
    return source.SerializeToString()


def _as_proto(source: Source, onnx: Any) -> Any:
    if isinstance(source, (str, Path)):
        return onnx.load(str(source))
    return onnx.load_from_string(source) if isinstance(source, bytes) else source


def _interpreted(action: Callable[[], Any], verb: str) -> Any:
    try:
        return action()
    except Exception as error:  # an interpreter of foreign graphs fails with whatever its operators raise
        raise RuntimeFailure(f"onnx.reference cannot {verb} the model: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.partition("[ONNXRuntimeError] : ")
    text = reason or text
    return text if len(text) <= 300 else text[:297] + "..."


def _plain(value: Any) -> Value:
    """The evaluator's strings come in numpy's fixed-width type, its scalars bare: bring both to one form."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # items of a foreign list
    array: Array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


# Types the runtime stores but has no numpy name for: onnx element type, bits, and the ml_dtypes name.
_BARE: dict[str, tuple[int, int, str]] = {
    "tensor(bfloat16)": (16, 16, "bfloat16"),
    "tensor(float8e4m3fn)": (17, 8, "float8_e4m3fn"),
    "tensor(float8e4m3fnuz)": (18, 8, "float8_e4m3fnuz"),
    "tensor(float8e5m2)": (19, 8, "float8_e5m2"),
    "tensor(float8e5m2fnuz)": (20, 8, "float8_e5m2fnuz"),
    "tensor(uint4)": (21, 4, "uint4"),
    "tensor(int4)": (22, 4, "int4"),
    "tensor(float4e2m1)": (23, 4, "float4_e2m1fn"),
    "tensor(float8e8m0)": (24, 8, "float8_e8m0fnu"),
    "tensor(uint2)": (25, 2, "uint2"),
    "tensor(int2)": (26, 2, "int2"),
}


def _bare_type(type_name: str) -> tuple[int, int, str] | None:
    return _BARE.get(type_name)


def _to_ort_value(value: Value, type_name: str) -> Any:
    if not isinstance(value, np.ndarray):
        raise ValueError("sequences and optionals cannot travel beside types without a numpy name")
    ort = _onnxruntime()
    bare = _bare_type(type_name)
    if bare is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    element, bits, _ = bare
    words = np.ascontiguousarray(value).view(np.uint16 if bits == 16 else np.uint8)
    if bits < 8:  # the runtime packs; it reads the packed bytes from the front of a buffer of the logical shape
        packed = _pack(words.reshape(-1), bits)
        words = np.zeros(value.shape, np.uint8)
        words.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element)


def _from_ort_value(value: Any) -> Value:
    bare = _bare_type(value.data_type())
    if bare is None:
        array: Array = value.numpy()
        return array
    _, bits, name = bare
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    size = (count * bits + 7) // 8
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8)
    dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    words = _unpack(raw, bits, count) if bits < 8 else raw
    if name in ("int4", "int2"):  # ml_dtypes keeps one small int a byte, sign-extended
        return ((words.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(dtype).reshape(shape)
    return words.view(dtype).reshape(shape).copy()


def _pack(words: Array, bits: int) -> Array:
    per_byte = 8 // bits
    padded = np.zeros(-(-words.size // per_byte) * per_byte, np.uint8)
    padded[: words.size] = words & ((1 << bits) - 1)
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)


def _unpack(raw: Array, bits: int, count: int) -> Array:
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)

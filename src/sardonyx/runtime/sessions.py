"""Models loaded to be verified: in ONNX Runtime without its optimizations, and in runtimes that it is compared with.

Values of types that have no numpy name in the runtime (bfloat16, float8, int4 …) are passed as raw memory.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure, UsageError, install_hint
from sardonyx.runtime import library
from sardonyx.runtime.library import Array, Engine, Feeds, Source, Value

if TYPE_CHECKING:
    from sardonyx.runtime.web import Installed

# A loop leaves hundreds of megabytes of JSON, which are not parsed.
_RAN = re.compile(rb'"name" *: *"((?:[^"\\]|\\.)*)_kernel_time"')


class Session:
    """A model in ONNX Runtime on the CPU, with its graph optimizations off unless `optimize` is set.

    After each run it returns the memory of intermediate results to the system, unless it `keeps_memory` for the next.
    """

    def __init__(
        self,
        source: Source,
        *,
        optimize: bool = False,
        threads: int | None = None,
        profile: bool = False,
        keeps_memory: bool = False,
    ) -> None:
        options = library.session_options()
        self._folder = temporary_folder() if profile else None
        if self._folder is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        level = library.onnxruntime().GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.enable_mem_pattern = False  # sizes change between runs
        # Planning the reuse of buffers takes time quadratic in the number of nodes: 46 s for 7,600 of them, 1 s
        # without, with the same peak memory.
        options.enable_mem_reuse = optimize
        if not optimize:  # a weight that becomes constant must not change the kernel
            options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads use no processor
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        self._session: Any = library.open_session(source, options, ["CPUExecutionProvider"])
        self._input_types: dict[str, str] = {i.name: i.type for i in self._session.get_inputs()}
        self._output_types: list[str] = [o.type for o in self._session.get_outputs()]
        self._has_raw_types = not _RAW_TYPES.keys().isdisjoint((*self._input_types.values(), *self._output_types))
        self._optimize, self._frees_memory = optimize, not keeps_memory

    @property
    def name(self) -> str:
        """Return the runtime, its version and whether it optimizes."""
        state = "on" if self._optimize else "off"
        return f"onnxruntime {library.onnxruntime().__version__}, optimizations {state}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order."""
        try:
            if self._has_raw_types:
                return self._run_raw(feeds)
            return list(self._session.run(None, dict(feeds), library.run_options(frees_memory=self._frees_memory)))
        except library.errors() as error:
            raise RuntimeFailure(f"ONNX Runtime cannot run the model: {library.one_line(error)}") from error

    def executed(self) -> frozenset[str] | None:
        """Return the names of the nodes that have run, including those in bodies, or None without `profile`.

        This ends the profile: later runs are not recorded.
        """
        if self._folder is None:
            return None
        profile = Path(self._session.end_profiling()).read_bytes()
        return frozenset(json.loads(b'"' + name + b'"') for name in set(_RAN.findall(profile)))

    def _run_raw(self, feeds: Feeds) -> list[Value]:
        """Run a model with types that have no numpy name in the runtime, through raw memory."""
        inputs = {name: _to_ort_value(value, self._input_types.get(name, "")) for name, value in feeds.items()}
        results = self._session.run_with_ort_values(None, inputs, library.run_options(frees_memory=self._frees_memory))
        return [_from_ort_value(result) for result in results]


class ReferenceSession:
    """A model in the reference evaluator of the onnx package: slow, but has every standard operator."""

    def __init__(self, source: Source) -> None:
        onnx: Any = importlib.import_module("onnx")
        evaluator: Any = importlib.import_module("onnx.reference").ReferenceEvaluator

        def build() -> Any:
            if isinstance(source, (str, Path)):
                return evaluator(onnx.load(str(source)))
            return evaluator(onnx.load_from_string(source) if isinstance(source, bytes) else source)

        self._evaluator: Any = _guarded(build, "onnx.reference cannot load")

    @property
    def name(self) -> str:
        """Return the evaluator and its version."""
        import onnx

        return f"onnx.reference {onnx.__version__}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order."""
        with np.errstate(all="ignore"):
            run = functools.partial(self._evaluator.run, None, dict(feeds))
            results: list[Any] = _guarded(run, "onnx.reference cannot run")
        return [_normalized(result) for result in results]


def evaluate(model: Source) -> list[Array]:
    """Return all outputs of a model without inputs, computed once, for constant folding.

    ONNX Runtime is tried first and the reference evaluator second, for loading and for running.
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


def _guarded(action: Callable[[], Any], failure: str, errors: tuple[type[Exception], ...] = (Exception,)) -> Any:
    """Return the result of an action of another runtime; by default it may raise anything, as the evaluator does."""
    try:
        return action()
    except errors as error:
        raise RuntimeFailure(f"{failure} the model: {library.one_line(error)}") from error


def _normalized(value: Any) -> Value:
    """Return a result in the form of ONNX Runtime: strings as objects, scalars as arrays."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_normalized(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # items of a foreign list
    array: Array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


# The element types of ONNX that the runtime supports without a numpy name.
_RAW_NAMES = (
    "bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 uint2 int2"
)
_RAW_TYPES = {f"tensor({name})": number for number, name in enumerate(_RAW_NAMES.split(), 16)}


def _to_ort_value(value: Value, type_name: str) -> Any:
    """Return a value as the runtime accepts it."""
    if not isinstance(value, np.ndarray):
        raise ValueError("sequences and optionals are not supported together with types without a numpy name")
    ort = library.onnxruntime()
    element = _RAW_TYPES.get(type_name)
    if element is None:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    from sardonyx.ir import storage  # slow to import, for rare types

    words = np.zeros(value.shape, np.uint16 if value.itemsize == 2 else np.uint8)
    data = np.frombuffer(storage.packed(value, storage.ir.DataType(element)), np.uint8)
    words.reshape(-1).view(np.uint8)[: data.size] = data  # elements of less than a byte are packed at the start
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element)


def _from_ort_value(value: Any) -> Value:
    """Return a value of the runtime as an array."""
    element = _RAW_TYPES.get(value.data_type())
    if element is None:
        array: Array = value.numpy()
        return array
    from sardonyx.ir import storage

    shape, dtype = tuple(value.shape()), storage.ir.DataType(element)
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), storage.stored_bytes(dtype, shape)), np.uint8)
    return storage.unpacked(data, dtype, shape).copy()


class Runtime(StrEnum):
    """An independent implementation of the ONNX operators."""

    ORT = "ort"  # ONNX Runtime on the CPU, graph optimizations off
    REFERENCE = "reference"  # the reference evaluator of the onnx package: slow, but has every standard operator
    OPENVINO = "openvino"  # OpenVINO on the CPU, in the precision that the model declares
    WEB_WASM = "web-wasm"  # onnxruntime-web in a headless Chromium, by WebAssembly
    WEB_WEBGPU = "web-webgpu"  # the same by WebGPU, with an adapter in software


_IN_BROWSER = {Runtime.WEB_WASM: "wasm", Runtime.WEB_WEBGPU: "webgpu"}


def parse_runtimes(names: Sequence[Runtime | str]) -> list[Runtime]:
    """Return the runtimes with these names, each once; ONNX Runtime if there are none.

    Raises:
        UsageError: There is no such runtime.
        RuntimeFailure: One of them is not installed.
    """
    try:
        chosen = [Runtime(name) for name in dict.fromkeys(names)] or [Runtime.ORT]
    except ValueError as error:
        known = ", ".join(runtime.value for runtime in Runtime)
        raise UsageError(f"there is no runtime {error.args[0].split(' is not')[0]}", hint=f"known: {known}") from error
    if Runtime.OPENVINO in chosen and importlib.util.find_spec("openvino") is None:
        raise RuntimeFailure("OpenVINO is not installed", hint=install_hint("openvino"))
    for runtime in chosen:
        in_browser(runtime)
    return chosen


def in_browser(runtime: Runtime) -> Installed | None:
    """Return what runs models in a browser, if this runtime does.

    Raises:
        RuntimeFailure: It is not installed.
    """
    if runtime not in _IN_BROWSER:
        return None
    from sardonyx.runtime.web import installed  # slow to import

    return installed()


def load(
    runtime: Runtime,
    source: Source,
    *,
    threads: int | None = None,
    profile: bool = False,
    optimize: bool = False,
    keeps_memory: bool = False,
    using: Installed | None = None,
) -> Engine:
    """Load a model in one of the runtimes; those that cannot record which nodes run ignore `profile`.

    Raises:
        RuntimeFailure: if the runtime does not accept the model.
    """
    match runtime:
        case Runtime.ORT:
            return Session(source, optimize=optimize, threads=threads, profile=profile, keeps_memory=keeps_memory)
        case Runtime.REFERENCE:
            return ReferenceSession(source)
        case Runtime.OPENVINO:
            return OpenVinoSession(source, threads=threads)
        case Runtime.WEB_WASM | Runtime.WEB_WEBGPU:
            from sardonyx.runtime.web import WebSession  # slow to import

            return WebSession(source, _IN_BROWSER[runtime], threads=threads, using=using)


# A model in OpenVINO on the CPU, an implementation of the ONNX operators that shares no kernel with ONNX Runtime.

_OPENVINO_ERRORS = (RuntimeError, ValueError, TypeError, NotImplementedError)
# Compute in single precision: by default the plugin may use bfloat16 if the machine supports it.
_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


class OpenVinoSession:
    """A model in OpenVINO, which computes in the types that the model declares.

    Raises:
        RuntimeFailure: if OpenVINO does not accept the model.
    """

    def __init__(self, source: Source, *, threads: int | None = None) -> None:
        sys.modules.setdefault("openvino_telemetry", cast("Any", None))  # otherwise the import connects to a server
        package: Any = importlib.import_module("openvino")
        settings = _SETTINGS | ({} if threads is None else {"INFERENCE_NUM_THREADS": threads})

        def compile_model() -> Any:
            core = package.Core()
            return core.compile_model(core.read_model(library.loadable(source)), "CPU", settings)

        self._model: Any = _guarded(compile_model, "OpenVINO cannot load", _OPENVINO_ERRORS)

    @property
    def name(self) -> str:
        """Return the runtime and its version."""
        from importlib.metadata import version  # slow to import

        return f"openvino {version('openvino')}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all graph outputs in order."""
        return self.ready(feeds)()

    def ready(self, feeds: Feeds) -> Callable[[], list[Value]]:
        """Return a function that runs the model once. OpenVINO drops inputs that nothing reads."""
        names: list[set[str]] = [port.get_names() for port in self._model.inputs]
        missing = next((sorted(alike) for alike in names if alike.isdisjoint(feeds)), None)
        if missing is not None:
            raise RuntimeFailure(f"OpenVINO cannot run the model: there is no value for its input {missing[0]!r}")
        inputs = {name: _dense(value, name) for name, value in feeds.items() if any(name in alike for alike in names)}
        request = self._model.create_infer_request()

        def infer() -> list[Value]:
            request.infer(inputs)
            return [np.array(request.get_output_tensor(index).data) for index in range(len(self._model.outputs))]

        return lambda: _guarded(infer, "OpenVINO cannot run", _OPENVINO_ERRORS)


def _dense(value: Value, name: str) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        raise RuntimeFailure(f"OpenVINO cannot run the model: it does not support values like those of '{name}'")
    return np.ascontiguousarray(value)

"""Models loaded to be proven: in ONNX Runtime with its own optimizations off, or in the reference evaluator of onnx."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import library, raw_values
from sardonyx.runtime.values import Array, Feeds, Source, Value

if TYPE_CHECKING:
    import onnx


class Session:
    """A model in ONNX Runtime on the CPU, its graph optimizations off unless asked for."""

    def __init__(
        self, source: Source, *, optimize: bool = False, threads: int | None = None, profile: bool = False
    ) -> None:
        options = library.session_options()
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-") if profile else None
        if self._folder is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name) / "profile")
        level = library.onnxruntime().GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.enable_mem_pattern = False  # sizes change from run to run
        # Planning which buffer to use again takes time quadratic in the nodes: 46 s for 7,600 of them, 1 s without, at
        # the same peak of memory.
        options.enable_mem_reuse = optimize
        options.enable_cpu_mem_arena = optimize  # it keeps what it once had: 430 MB after a run that leaves 110 without
        if not optimize:  # a weight that a rewrite makes constant must not change which kernel reads it
            options.add_session_config_entry("session.disable_prepacking", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        self._session: Any = library.opened(source, options, ["CPUExecutionProvider"])
        self._input_types: dict[str, str] = {i.name: i.type for i in self._session.get_inputs()}
        self._output_types: list[str] = [o.type for o in self._session.get_outputs()]
        self._has_bare_types = any(raw_values.bare_type(t) for t in (*self._input_types.values(), *self._output_types))
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
            return list(self._session.run(None, dict(feeds), library.run_options()))
        except library.errors() as error:
            raise RuntimeFailure(f"ONNX Runtime cannot run the model: {library.one_line(error)}") from error

    def executed(self) -> frozenset[str] | None:
        """Names of the nodes that have run, those in bodies included; None unless opened with `profile`.

        Ends the profile: later runs are not counted.
        """
        if self._folder is None:
            return None
        events: list[dict[str, Any]] = json.loads(Path(self._session.end_profiling()).read_bytes())
        suffix = "_kernel_time"
        names = (str(event.get("name", "")) for event in events if event.get("cat") == "Node")
        return frozenset(name.removesuffix(suffix) for name in names if name.endswith(suffix))

    def _run_bare(self, feeds: Feeds) -> list[Value]:
        """Run with types numpy has no name for in the runtime (bfloat16, float8, int4 …), through raw memory."""
        given = {name: raw_values.to_ort_value(value, self._input_types.get(name, "")) for name, value in feeds.items()}
        results = self._session.run_with_ort_values(None, given, library.run_options())
        return [raw_values.from_ort_value(result) for result in results]


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


def _as_proto(source: Source, onnx: Any) -> Any:
    if isinstance(source, (str, Path)):
        return onnx.load(str(source))
    return onnx.load_from_string(source) if isinstance(source, bytes) else source


def _interpreted(action: Callable[[], Any], verb: str) -> Any:
    try:
        return action()
    except Exception as error:  # an interpreter of foreign graphs fails with whatever its operators raise
        raise RuntimeFailure(f"onnx.reference cannot {verb} the model: {library.one_line(error)}") from error


def _plain(value: Any) -> Value:
    """The evaluator's strings come in numpy's fixed-width type, its scalars bare: bring both to one form."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # items of a foreign list
    array: Array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array

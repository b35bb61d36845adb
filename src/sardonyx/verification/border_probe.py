"""Run a model with some of its inner values as additional outputs, or with some of them replaced.

The weights of a large model are written once; every variant of the graph is a small file beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sardonyx.common.temporary import TemporaryFolder, temporary_folder
from sardonyx.ir import io
from sardonyx.ir.facts import element_types
from sardonyx.runtime import Array, Feeds, Value
from sardonyx.runtime.observe import Observed
from sardonyx.runtime.remote import RemoteSession
from sardonyx.runtime.sessions import Runtime
from sardonyx.verification.double_precision import DoublePrecision
from sardonyx.verification.subject import Subject

Values: TypeAlias = tuple[list[Value], dict[str, Value]]  # outputs, and inner values by name
_SENT_BYTES = 1 << 23  # of constants up to which a graph is sent to the worker process without a file


class BorderProbe:
    """One ONNX model whose inner values can be read and replaced."""

    def __init__(self, model: ir.Model, runtime: Runtime, *, threads: int | None = None) -> None:
        self._runtime, self._threads = runtime, threads
        self._folder: TemporaryFolder | None = None
        self._numbers = itertools.count()
        self._source = model
        self._model = model if Subject(model).constant_bytes <= _SENT_BYTES else self._stored(model)
        self.types = {value.name: kind for value, kind in element_types(self._model).items()}
        self.output_names = [value.name or "" for value in model.graph.outputs]
        self.outputs = len(self.output_names)
        self.name = runtime.value
        self.runs = 0
        self.peak_bytes = 0

    def _stored(self, model: ir.Model) -> ir.Model:
        self._folder = temporary_folder()
        path = Path(self._folder.name) / "model.onnx"
        io.save(model, path, external=True, durable=False)
        return ir.from_proto(onnx.ModelProto.FromString(path.read_bytes()))

    def run(self, feeds: Feeds, names: Sequence[str] = ()) -> Values:
        """Return the outputs, and the inner values with these names."""
        with self._open(_exposing(self._model, names)) as session:
            results = self._run(session, feeds)
        return results[: self.outputs], self._named(names, results)

    def _named(self, names: Sequence[str], results: Sequence[Value]) -> dict[str, Value]:
        """Return the values by name; those that are outputs of the model anyway are not exposed again."""
        shown = dict(zip(self.output_names, results, strict=False))
        shown.update(zip(self._inner(names), results[self.outputs :], strict=True))
        return {name: shown[name] for name in names}

    def _inner(self, names: Sequence[str]) -> list[str]:
        return [name for name in dict.fromkeys(names) if name not in self.output_names]

    def in_double(self, feeds: Feeds, names: Sequence[str]) -> Values | None:
        """Return what `run` returns, computed in double precision; None if the model does not run in it."""
        model = _exposing(self._source, names)  # the stored model is only valid for files in its folder
        results = DoublePrecision(model, constants="widen", threads=self._threads).run(feeds)
        self.runs += 1
        return None if results is None else (results[: self.outputs], self._named(names, results))

    def replacing(self, feeds: Feeds, values: Mapping[str, Array]) -> list[Value]:
        """Return the outputs of the part of the model after these inner values, which are given.

        Raises:
            RuntimeFailure: The rest of the model does not run on these values.
        """
        copy, given = self._given(values)
        replaced = {name: self._converted(name, array) for name, array in values.items()}
        RemoveUnusedNodesPass()(copy)
        with self._open(copy) as session:
            results = self._run(session, {**feeds, **given})
        return [replaced.get(name, result) for name, result in zip(self.output_names, results, strict=True)]

    def between(self, feeds: Feeds, values: Mapping[str, Array], names: Sequence[str]) -> dict[str, Value]:
        """Return the inner values with these names, computed from other inner values, which are given.

        Raises:
            RuntimeFailure: The part between them does not run on these values.
        """
        copy, given = self._given(values)
        inner = {value.name: value for node in copy.graph for value in node.outputs}
        copy.graph.outputs.clear()
        copy.graph.outputs.extend(inner[name] for name in names)
        RemoveUnusedNodesPass()(copy)
        with self._open(copy) as session:
            return dict(zip(names, self._run(session, {**feeds, **given}), strict=True))

    def _given(self, values: Mapping[str, Array]) -> tuple[ir.Model, dict[str, Array]]:
        """Return a copy that reads these inner values from new inputs, and the feeds of these."""
        copy = self._model.clone()
        given: dict[str, Array] = {}
        for value in [value for node in copy.graph for value in node.outputs if value.name in values]:
            name = f"{value.name}.given"
            given[name] = array = self._converted(value.name or "", values[value.name or ""])
            kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            source = ir.Value(name=name, type=kind, shape=ir.Shape(array.shape))
            for user, index in list(value.uses()):
                user.replace_input_with(index, source)
            copy.graph.inputs.append(source)
        return copy, given

    def _converted(self, name: str, array: Array) -> Array:
        kind = self.types.get(name)
        return array if kind is None or kind.is_integer() else np.asarray(array.astype(kind.numpy()))

    def _open(self, model: ir.Model) -> RemoteSession:
        if self._folder is None:
            source: Path | bytes = io.to_proto(model).SerializeToString()
        else:
            source = Path(self._folder.name) / f"variant{next(self._numbers)}.onnx"
            source.write_bytes(ir.to_proto(model).SerializeToString())
        return RemoteSession(source, self._runtime, threads=self._threads, keep=self)

    def _run(self, session: RemoteSession, feeds: Feeds) -> list[Value]:
        self.name = session.name
        results = session.run(feeds)
        self.runs += 1
        self.peak_bytes = max(self.peak_bytes, session.usage.peak_bytes)
        return results


def _exposing(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy with these inner values as further outputs."""
    observed = Observed(model.clone())
    observed.show(names)
    return observed.model

"""Write the nodes before and after a wrong rewrite as small models, with inputs on which they differ.

`sardonyx verify before.onnx after.onnx --inputs inputs.npz` shows the difference again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.atomic_write import draft_folder, explained
from sardonyx.runtime import Array
from sardonyx.verification.rewrite_models import Excerpt, SmallModel


class Reproducers:
    """Writes a folder for each wrong rewrite; rewrites of the same structure share one."""

    def __init__(self, folder: str | Path, *, force: bool) -> None:
        self._folder, self._force = Path(folder), force
        self._written: dict[bytes, Path] = {}

    def write(self, name: str, excerpt: Excerpt, feeds: Mapping[str, Array], types: Mapping[str, ir.DataType]) -> str:
        """Write the excerpt of a rewrite of the pass `name`, with inputs on which the sides differ; return its path."""
        key = excerpt.signature
        if key not in self._written:
            path = self._path(name)
            with explained(str(path)):
                self._folder.mkdir(parents=True, exist_ok=True)
            with draft_folder(str(path), force=self._force) as draft, explained(str(path)):
                for side, small in (("before", excerpt.before), ("after", excerpt.after)):
                    model = _model(small, excerpt.results, feeds, types)
                    Path(draft, f"{side}.onnx").write_bytes(model.SerializeToString())
                np.savez(f"{draft}/inputs.npz", allow_pickle=False, **feeds)
            self._written[key] = path
        return str(self._written[key])

    def _path(self, name: str) -> Path:
        """Return a folder for a rewrite of a pass that none was written to before."""
        safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "pass"
        used = set(self._written.values())
        paths = (self._folder / (f"{safe}-{number}" if number > 1 else safe) for number in range(1, len(used) + 2))
        return next(path for path in paths if path not in used)


def _model(
    small: SmallModel, results: int, feeds: Mapping[str, Array], types: Mapping[str, ir.DataType]
) -> onnx.ModelProto:
    """Return one side as a model whose inputs are all values of the border, at the sizes of the inputs."""
    model = small.filled(types)
    del model.graph.input[:], model.graph.output[results:]
    for name, value in feeds.items():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, types[name].value, value.shape))
    return onnx.shape_inference.infer_shapes(model)  # outputs need a type

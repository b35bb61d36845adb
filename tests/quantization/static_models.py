"""Small models with convolutions, and the static recipe applied to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

from sardonyx.passes.cleanup import UNUSED
from sardonyx.verbs.optimize.candidates import Candidate, RewriteJob
from sardonyx.verbs.quantize.calibration import Calibration, calibrate
from sardonyx.verbs.quantize.product_check import ProductErrors, check_products
from sardonyx.verbs.quantize.recipe import Selection
from sardonyx.verbs.quantize.static_int8 import QuantizeStatically

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
CNN = """
g (float[n, 3, 16, 16] x) => (float[n, 10] y) {
  xp = Pad (x, pads)  a = Conv <strides = [2, 2]> (xp, w0, b0)  r = Relu (a)
  d = Conv <group = 16, pads = [1, 1, 1, 1]> (r, w1, b1)  c = Clip (d, zero, six)
  e = Conv (c, w2, b2)  f = Add (e, r)  h = Relu (f)  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (h)
  k = Conv <pads = [0, 1, 1, 0]> (p, w3)  cat = Concat <axis = 1> (k, p)
  m = GlobalAveragePool (cat)  v = Flatten (m)  y = Gemm <transB = 1> (v, w4, b4)
}
"""
MODULES = {
    "xp": "stem",
    "a": "stem",
    "r": "stem.act",
    "d": "block.depth",
    "e": "block.point",
    "f": "block",
    "k": "last",
    "y": "head",
}


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


def model_of(text: str, arrays: Mapping[str, np.ndarray], modules: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """A model from ONNX text; nodes are named by modules, so that they are owned."""
    model = onnx.parser.parse_model(HEADER + text if not text.lstrip().startswith("<") else text)
    for node in model.graph.node:
        path = (modules or {}).get(node.output[0], "net").replace(".", "/")
        node.name = f"/{path}/{node.op_type}_{node.output[0]}"
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def cnn() -> onnx.ModelProto:
    """Convolutions: padded by a node, depthwise, pointwise in a residual block, unevenly padded; then a classifier."""
    rng = np.random.default_rng(0)
    arrays = {"w0": normal(rng, 16, 3, 3, 3), "w1": normal(rng, 16, 1, 3, 3), "w2": normal(rng, 16, 16, 1, 1)}
    arrays |= {"w3": normal(rng, 112, 16, 2, 2), "w4": normal(rng, 10, 128)}
    arrays |= {f"b{number}": normal(rng, size, 1)[:, 0] for number, size in ((0, 16), (1, 16), (2, 16), (4, 10))}
    arrays |= {"pads": np.array([0, 0, 0, 1, 0, 0, 1, 0]), "zero": np.float32(0), "six": np.float32(6)}
    return model_of(CNN, {name: np.asarray(array) for name, array in arrays.items()}, MODULES)


def images(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)} for _ in range(count)]


def quantized(
    model: onnx.ModelProto,
    samples: Sequence[Mapping[str, np.ndarray]] | Calibration,
    selection: Selection | None = None,
) -> tuple[Candidate, list[str]]:
    """The model after the recipe, and the reasons why nodes were skipped."""
    calibration = samples if isinstance(samples, Calibration) else calibrate(model, samples, 1)
    recipe = QuantizeStatically(calibration, selection)
    candidate = RewriteJob(model, (recipe, *UNUSED), "portable", lambda *_: None, allow_growth=True).candidate()
    return candidate, [refusal.reason for refusal in candidate.log.refusals]


def checked(model: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]) -> ProductErrors:
    """The comparison of all products with their simulation."""
    recipe = QuantizeStatically(calibrate(model, samples, 1), simulate=True)
    candidate = RewriteJob(model, (recipe, *UNUSED), "portable", lambda *_: None, allow_growth=True).candidate()
    return check_products(candidate.model, recipe.simulated, samples, 1)

"""What other optimizers do with a file, each as its own short-lived process.

python benchmarks/peers.py PEER SOURCE OUTPUT       one optimization
python benchmarks/peers.py count MODEL              JSON: compute nodes, Constant nodes, BatchNormalization nodes
"""

from __future__ import annotations

import importlib.util
import json
import sys

OPTIONAL = ("onnxslim", "onnxsim", "onnxscript")  # each named as its package


def installed() -> list[str]:
    """The optional peers that can be run here; ONNX Runtime always can."""
    return [peer for peer in OPTIONAL if importlib.util.find_spec(peer)]


def onnxruntime(source: str, output: str) -> None:
    """The runtime's own offline optimizer at the extended level."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = output
    options.log_severity_level = 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnxslim(source: str, output: str) -> None:
    """onnxslim with its defaults."""
    import onnxslim as package

    package.slim(source, output)


def onnxsim(source: str, output: str) -> None:
    """onnxsim with its defaults."""
    import onnx
    import onnxsim as package

    result, _ = package.simplify(onnx.load(source))
    onnx.save(result, output)


def onnxscript(source: str, output: str) -> None:
    """onnxscript's optimizer followed by its default rewrite rules."""
    import onnx_ir
    from onnxscript import optimizer, rewriter

    model = onnx_ir.load(source)
    optimizer.optimize(model)
    onnx_ir.save(rewriter.rewrite(model), output)


def count(path: str) -> None:
    """Print how many nodes a file has, bodies of control flow included."""
    import onnx

    stack = list(onnx.load(path, load_external_data=False).graph.node)
    totals = {"nodes": 0, "constants": 0, "batch_norms": 0}
    while stack:
        node = stack.pop()
        totals["constants" if node.op_type == "Constant" else "nodes"] += 1
        totals["batch_norms"] += node.op_type == "BatchNormalization"
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                stack.extend(body.node)
    print(json.dumps(totals))


if __name__ == "__main__":
    verbs = (onnxruntime, onnxslim, onnxsim, onnxscript, count)
    {verb.__name__: verb for verb in verbs}[sys.argv[1]](*sys.argv[2:])

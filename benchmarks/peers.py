"""What other optimizers do with a file, each as its own short-lived process.

python benchmarks/peers.py PEER SOURCE OUTPUT           one optimization; PEER: a name of PORTABLE or RUNTIME
python benchmarks/peers.py count MODEL                  JSON: compute nodes, Constant nodes, BatchNormalization nodes
python benchmarks/peers.py answers SOURCE ANSWERS.npz   inputs at two sizes and what the file answers, unoptimized
python benchmarks/peers.py check ANSWERS.npz RESULT     JSON: whether the result loads and answers the same
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

OPTIONAL = ("onnxslim", "onnxsim", "onnxscript")  # each named as its package
PORTABLE = OPTIONAL  # their results are standard ONNX, whatever runs it
RUNTIME = ("onnxruntime", "transformers", "ort_fusions")  # these write ONNX Runtime's own operators too
PACKAGES = {"transformers": "onnxruntime", "ort_fusions": "onnxscript"}  # where it is not the peer's own name
SIZES = ({"batch": 1, "seq": 128}, {"batch": 2, "seq": 17})  # for dims that a file leaves open
CLOSE = 1e-3  # of an output's largest number: loose, so that only a wrong result is called wrong

# onnxruntime.transformers must be told what it looks at; where nothing fits, its own default.
MODEL_TYPES = {"gpt2": "gpt2", "swin": "swin", "t5": "t5", "whisper": "bart", "qwen3": "qwen3"}
MODEL_TYPES |= {"vit": "vit", "deit": "vit"}

sys.path.append(str(Path(sys.prefix) / "peers"))  # what is only compared with is installed apart, see the Makefile


def installed() -> list[str]:
    """The optional peers that can be run here; ONNX Runtime always can."""
    return [peer for peer in OPTIONAL if importlib.util.find_spec(peer)]


def version(peer: str) -> str:
    """The release of the package that a peer is part of; empty where it is not installed."""
    try:
        return importlib.metadata.version(PACKAGES.get(peer, peer))
    except importlib.metadata.PackageNotFoundError:
        return ""


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


def transformers(source: str, output: str) -> None:
    """onnxruntime.transformers with its defaults for the kind of model that the file's name tells of."""
    from onnxruntime.transformers.optimizer import optimize_model

    kind = next((kind for part, kind in MODEL_TYPES.items() if part in Path(source).name), "bert")
    optimize_model(source, model_type=kind).save_model_to_file(output)


def ort_fusions(source: str, output: str) -> None:
    """onnxscript's optimizer and its fusions for ONNX Runtime."""
    import onnx_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model, _ = optimize_for_ort(onnx_ir.load(source))
    onnx_ir.save(model, output)


def count(path: str) -> None:
    """Print how many nodes a file has, bodies of control flow included."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    stack = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    totals = {"nodes": 0, "constants": 0, "batch_norms": 0}
    while stack:
        node = stack.pop()
        totals["constants" if node.op_type == "Constant" else "nodes"] += 1
        totals["batch_norms"] += node.op_type == "BatchNormalization"
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                stack.extend(body.node)
    print(json.dumps(totals))


def answers(source: str, path: str) -> None:
    """Write drawn inputs, and what the file answers to them with every runtime optimization off."""
    import numpy as np

    import feeds
    from sardonyx.runtime import Session

    session, kept = Session(source), {}
    for number, drawn in enumerate(feeds.several(source, SIZES)):
        kept |= {f"{number}/in/{name}": array for name, array in drawn.items()}
        names = feeds.output_names(source)
        kept |= {f"{number}/out/{name}": array for name, array in zip(names, session.run(drawn), strict=True)}
    np.savez(path, **kept)


def check(path: str, result: str) -> None:
    """Print whether a result loads and answers what the source answered."""
    import numpy as np

    import feeds
    from sardonyx.errors import SardonyxError
    from sardonyx.runtime import Session

    known = dict(np.load(path))
    try:
        session, names, takes = Session(result), feeds.output_names(result), feeds.input_names(result)
        worst = 0.0
        for number in sorted({key.partition("/")[0] for key in known}):
            given = {name: known[f"{number}/in/{name}"] for name in takes}
            for name, answer in zip(names, session.run(given), strict=True):
                worst = max(worst, feeds.distance(known[f"{number}/out/{name}"], np.asarray(answer)))
        why = "" if worst <= CLOSE else f"answers differ by {worst:.1g} of the largest number"
    except (SardonyxError, KeyError, ValueError) as failure:
        why = " ".join(str(failure).split())[:200]
    print(json.dumps({"valid": not why, "why": why}))


if __name__ == "__main__":
    verbs = (onnxruntime, onnxslim, onnxsim, onnxscript, transformers, ort_fusions, count, answers, check)
    {verb.__name__: verb for verb in verbs}[sys.argv[1]](*sys.argv[2:])

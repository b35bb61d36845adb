"""Change results and certificates, and let sardonyx-check judge them: no mutant that computes something else passes.

    python benchmarks/mutated_certificates.py --count 10000 [--seed 0]

The models are the examples of the passes. Three kinds of mutants: of the result alone, of the certificate alone, and
the same change in both, so that they still fit together and only the arithmetic can tell. The digests in the
certificate are always corrected, so that they refuse nothing. A mutant that is accepted is run: its outputs must be
those of the source.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from google.protobuf import json_format
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.passes import ALL
from sardonyx.passes.base import Pass
from sardonyx_check.check import check
from sardonyx_check.graphs import Refused

_SWAPPED = {"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Max": "Min", "Relu": "Abs", "Sigmoid": "Tanh"}


class Case(NamedTuple):
    """A source, its result and the certificate."""

    name: str
    source: Path
    result: onnx.ModelProto
    certificate: dict[str, Any]


class Mutant(NamedTuple):
    """A changed result with a changed certificate."""

    kind: str
    result: onnx.ModelProto
    certificate: dict[str, Any]


def case_of(rule: Pass, folder: Path) -> Case | None:
    """Optimize the example of a pass with all passes; None if there is none, or if nothing is rewritten."""
    example = getattr(rule, "example", None)
    if example is None:
        return None
    source, result, certificate = (folder / f"{rule.name}{end}" for end in (".onnx", ".small.onnx", ".json"))
    onnx.save(onnx.parser.parse_model(example.before), source)
    target = "portable" if "portable" in rule.targets else "ort"
    sardonyx.optimize(source, result, target=target, verify="off", only=[rule.name], certificate=certificate)
    content = json.loads(certificate.read_bytes())
    return Case(rule.name, source, onnx.load(result), content) if content["rewrites"] else None


def mutants(case: Case, rng: random.Random) -> Iterator[Mutant]:
    """Yield mutants without end."""
    makers = (_in_result, _in_certificate, _in_both)
    while True:
        maker = rng.choice(makers)
        result, certificate = onnx.ModelProto(), copy.deepcopy(case.certificate)
        result.CopyFrom(case.result)
        kind = maker(result, certificate, rng)
        if kind:
            yield Mutant(f"{maker.__name__[4:]}: {kind}", result, certificate)


def _in_result(result: onnx.ModelProto, _: dict[str, Any], rng: random.Random) -> str:
    graph = result.graph
    nodes, constants = list(graph.node), list(graph.initializer)
    match rng.choice(["attribute", "constant", "constant", "swap", "drop", "operator", "input"]):
        case "constant" if constants:
            return _change_tensor(rng.choice(constants), rng)
        case "attribute" if nodes:
            return _change_attribute(rng.choice(nodes), rng)
        case "swap":
            return _swap(rng.choice(nodes), rng) if nodes else ""
        case "drop" if nodes:
            node = rng.choice(nodes)
            replaced = helper.make_node("Identity", node.input[:1], node.output[:1])
            node.CopyFrom(replaced)
            return "drop a node"
        case "operator" if nodes:
            node = rng.choice(nodes)
            if node.op_type not in _SWAPPED:
                return ""
            node.op_type = _SWAPPED[node.op_type]
            return "another operator"
        case "input" if nodes:
            node = rng.choice(nodes)
            names = [v.name for v in (*graph.input, *graph.initializer)]
            place, other = rng.randrange(max(len(node.input), 1)), rng.choice(names)
            if not node.input or node.input[place] == other:
                return ""
            node.input[place] = other
            return "another input"
    return ""


def _in_certificate(_: onnx.ModelProto, certificate: dict[str, Any], rng: random.Random) -> str:
    rewrites = certificate["rewrites"]
    entry = rng.choice(rewrites)
    match rng.choice(["remove", "reorder", "repeat", "pair", "node", "constant", "opset", "expression"]):
        case "remove":
            rewrites.remove(entry)
            return "remove a rewrite"
        case "reorder" if len(rewrites) > 1:
            rewrites.insert(rng.randrange(len(rewrites)), rewrites.pop(rng.randrange(len(rewrites))))
            return "reorder"
        case "repeat":
            rewrites.append(copy.deepcopy(entry))
            return "repeat a rewrite"
        case "pair":
            names = [name for pair in entry["pairs"] for name in pair] + [
                n for e in entry.get("nodes", ()) for n in e.get("input", ()) if n
            ]
            rng.choice(entry["pairs"])[rng.randrange(2)] = rng.choice(names)
            return "another pair"
        case "node" if entry.get("nodes"):
            return _change_entry(rng.choice(entry["nodes"]), rng, rng.choice(_CHANGES))
        case "constant" if any("proto" in each for each in entry.get("constants", ())):
            constant = rng.choice([each for each in entry["constants"] if "proto" in each])
            proto = onnx.TensorProto.FromString(base64.b64decode(constant["proto"]))
            kind = _change_tensor(proto, rng)
            constant["proto"] = base64.b64encode(proto.SerializeToString()).decode()
            return kind
        case "opset":
            entry["opset"] += rng.choice([-1, 1])
            return "another opset"
        case "expression" if any("expression" in each for each in entry.get("constants", ())):
            constant = rng.choice([each for each in entry["constants"] if "expression" in each])
            return _change_entry(rng.choice(constant["expression"]), rng, rng.choice(_CHANGES))
    return ""


def _in_both(result: onnx.ModelProto, certificate: dict[str, Any], rng: random.Random) -> str:
    """Change a new node in both, or a constant that the certificate takes from the result."""
    entry = rng.choice(certificate["rewrites"])
    renamed = {new: old for old, new in entry["pairs"]}
    tensors = {t.name: t for t in result.graph.initializer}
    shared = [c for c in entry.get("constants", ()) if c["name"] in tensors]
    if shared and rng.random() < 0.4:
        constant = rng.choice(shared)  # read from the result, so that the change is in both
        return _change_tensor(tensors[constant["name"]], rng)
    if not entry.get("nodes"):
        return ""
    written = rng.choice(entry["nodes"])
    outputs = set(written["output"]) | {renamed.get(name, "") for name in written["output"]}
    node = next((n for n in result.graph.node if outputs & set(n.output) - {""}), None)
    if node is None or node.op_type != written["op_type"]:
        return ""
    change: Callable[[onnx.NodeProto, random.Random], str] = rng.choice([_swap, _change_attribute, _rename])
    state = rng.getstate()
    kind = change(node, rng)
    rng.setstate(state)  # so that the node of the certificate changes in the same way
    _change_entry(written, rng, change)
    return kind


def _change_entry(node: dict[str, Any], rng: random.Random, change: Callable[..., str]) -> str:
    """Change a node of the certificate as one of a model."""
    proto = json_format.ParseDict(node, onnx.NodeProto())
    kind = change(proto, rng)
    node.clear()
    node.update(json_format.MessageToDict(proto, preserving_proto_field_name=True))
    return kind


def _swap(node: onnx.NodeProto, rng: random.Random) -> str:
    if len(node.input) < 2:
        return ""
    order = list(range(len(node.input)))
    a, b = rng.sample(order, 2)
    order[a], order[b] = order[b], order[a]
    inputs = [node.input[k] for k in order]
    if inputs == list(node.input):
        return ""
    node.input[:] = inputs
    return "swap inputs"


def _rename(node: onnx.NodeProto, _: random.Random) -> str:
    if node.op_type not in _SWAPPED:
        return ""
    node.op_type = _SWAPPED[node.op_type]
    return "another operator"


def _change_attribute(node: onnx.NodeProto, rng: random.Random) -> str:
    attributes = [a for a in node.attribute if a.type in (1, 2, 6, 7)]
    if not attributes:
        return ""
    attribute = rng.choice(attributes)
    match attribute.type:
        case onnx.AttributeProto.FLOAT:
            attribute.f = (
                float(np.nextafter(np.float32(attribute.f), np.float32(np.inf)))
                if rng.random() < 0.5
                else attribute.f * 2 + 1
            )
        case onnx.AttributeProto.INT:
            attribute.i += rng.choice([-1, 1])
        case onnx.AttributeProto.INTS if len(attribute.ints) > 1 and rng.random() < 0.5:
            values = list(attribute.ints)
            rng.shuffle(values)
            if values == list(attribute.ints):
                return ""
            attribute.ints[:] = values
        case onnx.AttributeProto.INTS if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] += rng.choice([-1, 1])
        case onnx.AttributeProto.FLOATS if attribute.floats:
            attribute.floats[rng.randrange(len(attribute.floats))] += 0.5
        case _:
            return ""
    return f"attribute {attribute.name}"


def _repeat_input(node: onnx.NodeProto, _: random.Random) -> str:
    if len(set(node.input)) < 2:
        return ""
    node.input[-1] = node.input[0]
    return "another input"


_CHANGES = (_swap, _change_attribute, _rename, _repeat_input)


def _change_tensor(tensor: onnx.TensorProto, rng: random.Random) -> str:
    """Change one element: an integer by one, a float by eight units in the last place or by a half."""
    array = numpy_helper.to_array(tensor).copy()
    if not array.size or array.dtype == object:
        return ""
    flat = array.reshape(-1)
    place = rng.randrange(flat.size)
    if array.dtype == bool:
        flat[place] = ~flat[place]
    elif array.dtype.kind == "f":
        far = rng.random() < 0.5
        flat[place] = (
            flat[place] + 0.5 if far or flat[place] == 0 else flat[place] * (1 + 8 * np.finfo(array.dtype).eps)
        )
    else:
        flat[place] += rng.choice([-1, 1])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"element of {array.dtype}"


def judge(case: Case, mutant: Mutant, folder: Path) -> str:
    """Return how sardonyx-check answers, or WRONG if it accepts a mutant that computes something else."""
    result, certificate = folder / "mutant.onnx", folder / "mutant.json"
    data = mutant.result.SerializeToString()
    result.write_bytes(data)
    content = {**mutant.certificate, "result": {"sha256": hashlib.sha256(data).hexdigest()}}
    certificate.write_text(json.dumps(content))
    try:
        report = check(case.source, result, certificate)
    except Refused:
        return "refused"
    if report.code:
        return "refused" if report.code == 3 else "by trials only"
    return "accepted, equal" if _same(case, mutant) else "WRONG"


def _same(case: Case, mutant: Mutant) -> bool:
    """Run both models on random inputs."""
    source = onnx.load(case.source)
    try:
        sessions = [onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
                    for m in (source, mutant.result)]  # fmt: skip
        for seed in range(4):
            rng = np.random.default_rng(seed)
            feeds = {info.name: _array(info, rng) for info in source.graph.input}
            for a, b in zip(*(session.run(None, feeds) for session in sessions), strict=True):
                a, b = np.asarray(a), np.asarray(b)
                if a.shape != b.shape or not np.allclose(a, b, 1e-4, 1e-5, equal_nan=True):
                    return False
    except (
        Exception
    ):  # every error of the runtime has a class of its own: the mutant does not run where the source does
        return False
    return True


def _array(info: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    kind = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 3 for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return (rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)).astype(dtype)


def run(count: int, seed: int, folder: Path, rules: tuple[Pass, ...] = ALL) -> Counter[str]:
    """Judge mutants of all cases in turn; return how often each answer was given."""
    answers: Counter[str] = Counter()
    cases = [case for rule in rules if (case := case_of(rule, folder)) is not None]
    streams = [mutants(case, random.Random(f"{seed} {case.name}")) for case in cases]
    for number in range(count):
        case, mutant = cases[number % len(cases)], next(streams[number % len(cases)])
        answer = judge(case, mutant, folder)
        answers[answer] += 1
        answers[f"{mutant.kind.partition(':')[0]}: {answer}"] += 1
        if answer == "WRONG":
            print(f"WRONG: {case.name}: {mutant.kind}", file=sys.stderr)
            onnx.save(mutant.result, folder / f"wrong{number}.onnx")
            (folder / f"wrong{number}.json").write_text(json.dumps(mutant.certificate))
    return answers


def main() -> int:
    """Run a campaign."""
    onnxruntime.set_default_logger_severity(4)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answers = run(given.count, given.seed, Path(folder))
    for answer, count in sorted(answers.items()):
        print(f"{count:7} {answer}")
    return 1 if answers["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Random graphs with modules: where their nodes belong, what is extracted, and which rewrites cross kept borders."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import recorded
from backend.cases import node_cases
from known_sizes import count
from sardonyx import runtime
from sardonyx.errors import SardonyxError
from sardonyx.ir import device, io, module_borders, module_region, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.scopes import scopes
from sardonyx.passes import ALL
from sardonyx.records.provenance import CALL, MODULE_PATH, MODULE_PATHS

PATHS = ("net", "net.a", "net.a.first", "net.a.second", "net.b", "net.b@1", "net.b@1.act", "net.b.act", "head")
UNARY = ("Relu", "Neg", "Identity", "Exp", "Transpose", "Dropout", "Sigmoid", "Cast")
BINARY = ("Add", "Mul", "MatMul", "Sub")


def tags(choose: Random, path: str) -> dict[str, str]:
    """What exporters and earlier versions write; sometimes nothing."""
    kind = choose.randrange(8)
    if kind == 0:
        return {}
    if kind == 1:
        return {MODULE_PATH: path.replace("@1", ""), CALL: path}
    if kind == 2:
        others = sorted({path, choose.choice(PATHS)})
        return {MODULE_PATH: "net" if len(others) > 1 else path, MODULE_PATHS: json.dumps(others)}
    if kind == 3:
        return {"namespace": f"{path}: own.Module/{path.replace('.', '/')}"}
    return {MODULE_PATH: path}


def tagged_model(seed: int) -> onnx.ModelProto:
    """A graph of matrices, with shared constants, values read twice, sizes, and a body."""
    choose = Random(seed)
    nodes: list[onnx.NodeProto] = []
    values, path = ["x"], "net"

    def add(op: str, *reads: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        where = f"/{path.replace('.', '/')}/{op}_{len(nodes)}" if choose.random() < 0.3 else f"{op}_{len(nodes)}"
        node = helper.make_node(op, reads, [name], name=where, **attributes)
        for key, text in tags(choose, path).items():
            node.metadata_props.add(key=key, value=text)
        nodes.append(node)
        values.append(name)
        return name

    for _ in range(choose.randint(6, 14)):
        path = choose.choice((path, path, choose.choice(PATHS)))
        kind, source = choose.random(), choose.choice(values[-4:])
        if kind < 0.45:
            op = choose.choice(UNARY)
            add(op, source, **({"perm": [1, 0]} if op == "Transpose" else {"to": 1} if op == "Cast" else {}))
        elif kind < 0.8:
            add(choose.choice(BINARY), source, choose.choice((*values[-3:], "w", "one", "zero", "m")))
        elif kind < 0.9:
            add("Reshape", source, add("Shape", source))
        else:
            body = helper.make_node("Add", [source, "w"], ["inner"], name="inside")
            made = [helper.make_graph([body], "b", [], [helper.make_tensor_value_info("inner", 1, None)])] * 2
            add("If", "c", then_branch=made[0], else_branch=made[1])
    inputs = [helper.make_tensor_value_info("x", 1, [4, 4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    outputs = [
        helper.make_tensor_value_info(name, 1, None) for name in dict.fromkeys((values[-1], choose.choice(values[1:])))
    ]
    constants = {"w": np.ones(4), "one": np.array(1), "zero": np.zeros(1), "m": np.eye(4)}
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def sum_of(text: object) -> int:
    return zlib.crc32(repr(text).encode())


@pytest.mark.parametrize("part", range(4))
def test_nodes_belong_where_they_belonged(part: int) -> None:
    found: dict[str, object] = {}
    for seed in range(part * 25, part * 25 + 25):
        model = io.from_proto(tagged_model(seed))
        hierarchy = origins.attach(model)
        nodes = [node for scope in scopes(model) for node in scope.graph]
        told = [(sorted(origins.origins(n)), origins.owner(n), origins.how(n).name, origins.reason(n),
                 getattr(origins.evidence(n), "name", "")) for n in nodes]  # fmt: skip
        origins.write(model, hierarchy)
        found[f"{seed}"] = [sum_of(told), sum_of([sorted(node.metadata_props.items()) for node in nodes])]
    recorded.check("owners", found)


@pytest.mark.parametrize("part", range(4))
def test_modules_are_cut_out_as_before(part: int) -> None:
    found: dict[str, object] = {}
    for seed in range(part * 20, part * 20 + 20):
        proto = tagged_model(seed)
        for path in Random(seed).sample(("net.a", "net.b", "head", "net.a.first", "net.b.act", "nowhere"), 3):
            for exact in (False, True):
                model = io.from_proto(proto)
                try:
                    cut = module_region.extract(model, origins.attach(model), path, call=seed % 2, exact=exact)
                except SardonyxError as error:
                    told: object = f"{error.message} ({error.hint})"
                else:
                    kinds = [node.op_type for node in cut.model.graph]
                    told = [list(cut.inputs), list(cut.outputs), sum_of((kinds, str(cut.model.graph.inputs)))]
                found[f"{seed} {path}{' exactly' if exact else ''}"] = told
    recorded.check("cuts", found)


@pytest.mark.parametrize("part", range(4))
def test_rewrites_are_those_of_before(part: int) -> None:
    """Of all passes, with and without kept modules: the events, and why others were refused."""
    found: dict[str, object] = {}
    for seed in range(part * 15, part * 15 + 15):
        for kept in ((), Random(seed).sample(("net.a", "net.b", "head", "net.a.*", "net.b.act", "Module"), 2)):
            model = io.from_proto(tagged_model(seed))
            hierarchy = origins.attach(model)
            try:
                borders = module_borders.Borders.of(model, hierarchy, kept)
            except SardonyxError as error:
                found[f"{seed} {kept}"] = f"{error.message} ({error.hint})"
                continue
            target = "ort" if seed % 2 else "portable"
            facts = Facts(model, target=target, evaluate=runtime.evaluate)
            log = Rewriter(facts, list(ALL), borders=borders).run()
            reasons = Counter(refusal.reason for refusal in log.refusals)
            written = io.to_proto(model).SerializeToString(deterministic=True)
            kinds = Counter(f"{event.pass_name} {event.kind.name}" for event in log.events)
            found[f"{seed} {list(kept)}"] = [dict(kinds), sum_of(sorted(reasons.items())), zlib.crc32(written)]
    recorded.check("rewritten", found)


def test_devices_answer_as_before() -> None:
    """Where each device runs onnx's node cases."""
    found: dict[str, list[int]] = {}
    profiles = {name: device.read_profile(name) for name in device.names()}
    for case in node_cases()[::5]:
        model = io.from_proto(case.model) if len(case.model.graph.node) == 1 else None
        if model is None:
            continue
        facts, node = Facts(model), model.graph[0]
        facts.infer()
        for name, profile in profiles.items():
            for opset in (None, 9, 15):
                asked, where = device.place(node, facts, profile, opset)
                count(found, f"{name}: {where.name}", [1, zlib.crc32(f"{case.name} {asked}".encode()) % 1000])
    recorded.check("devices", found)

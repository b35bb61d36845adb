"""Explain why no runtime loads a model: the messages of runtimes name neither the node nor what to do."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.runtime import library
from sardonyx.runtime.library import Source

LOAD_A_LIBRARY = "load the library that has them with `custom_ops`"

# Domains that ONNX Runtime knows; functions of the model are known too.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
_DOMAINS = frozenset((*_STANDARD, "com.microsoft", "com.microsoft.nchwc"))
_SHAPE_ERROR = re.compile(r"Node \((?P<name>.*?)\) Op \((?P<op>\w+)\) \[ShapeInferenceError\] (?P<why>.*)")
_UNREGISTERED = re.compile(r"([\w.]*):(\w+)\(-?\d+\) is not a registered function/op")
_LISTED_NAMES = 4  # names in a message


def explain(model: ir.Model, message: str) -> tuple[str, str] | None:
    """Return one line about what is wrong with a model, from the runtime's message, and a hint; None if unknown."""
    return _unknown_operators(model, message) or _shape_error(model, message)


def explained(source: Source, failure: RuntimeFailure) -> RuntimeFailure:
    """Return the failure to load a model in clear words if the cause is known, otherwise as it is."""
    if isinstance(source, bytes):
        source = onnx.load_model_from_string(source)
    model = io.load(source) if isinstance(source, (str, Path)) else io.from_proto(source)
    known = explain(model, failure.message)
    return failure if known is None else RuntimeFailure(known[0], hint=known[1])


def _unknown_operators(model: ir.Model, message: str) -> tuple[str, str] | None:
    functions = {(function.domain, function.name) for function in model.functions.values()}
    named = set(_UNREGISTERED.findall(message))
    loaded = library.custom_op_libraries()
    custom = dict.fromkeys(
        f"{node.domain}::{node.op_type}"
        for node in model.graph.all_nodes()
        if (node.domain, node.op_type) in named
        or (node.domain not in _DOMAINS and (node.domain, node.op_type) not in functions and not loaded)
    )
    if not custom:
        return None
    more = f" and {len(custom) - _LISTED_NAMES} more" if len(custom) > _LISTED_NAMES else ""
    names = ", ".join([*custom][:_LISTED_NAMES]) + more
    return f"the model has operators that the runtime does not know: {names}", LOAD_A_LIBRARY


def _shape_error(model: ir.Model, message: str) -> tuple[str, str] | None:
    """Name the node whose inputs do not fit together, with their shapes."""
    match = _SHAPE_ERROR.search(message)
    if match is None:
        return None
    nodes = [n for n in model.graph.all_nodes() if n.op_type == match["op"] and (n.name or "") == match["name"]]
    if len(nodes) != 1:
        return None
    facts = Facts(model)
    facts.infer()
    sizes = [(value.name, facts.shape(value)) for value in nodes[0].inputs if value is not None]
    told = [(name, "of unknown shape" if size is None else f"[{', '.join(map(str, size))}]") for name, size in sizes]
    shapes = [f"{name} {text}" for name, text in told]
    name = nodes[0].name or nodes[0].outputs[0].name
    return (
        f"{match['op']} '{name}' cannot be computed: {match['why'].lower()}: {' and '.join(shapes)}",
        "correct the shapes where the model was exported",
    )

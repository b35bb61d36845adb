"""A file beside its module on inputs that neither was exported with: other values, and other sizes where it has any.

The module runs in PyTorch and the file in ONNX Runtime with its default optimizations, as users run it. Tags are
compared with an eager run (`truth.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

import tracer
import truth
from sardonyx.errors import reason
from sardonyx.frontend.inputs.dynamic import dim_terms, places_of, refusal, resized
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.tracing.adapter import Feeds, ModuleCall
from sardonyx.frontend.tracing.prepare import prepared

Axes = Mapping[str, Mapping[int, str]]  # input -> axis -> dimension
STATE = "sardonyx.state"  # metadata of a file whose module keeps something from call to call
SEED = 1  # of the other values
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # of an element; of all, in the root of the mean square if that is above 1
RIGHT = "right"


def session_of(path: Path) -> onnxruntime.InferenceSession:
    """A file as users run it, without messages."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def state_of(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The state of a file before its first call by input, and the inputs by the outputs that continue them."""
    properties = {each.key: each.value for each in onnx.load(path, load_external_data=False).metadata_props}
    declared = json.loads(properties.get(STATE, "{}"))
    first = {
        name: np.broadcast_to(np.array(each["initial"], each["dtype"]), each["shape"])
        for name, each in declared.items()
    }
    return first, {each["output"]: name for name, each in declared.items()}


def array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as ONNX Runtime takes it."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().clone().numpy()


def same(wanted: np.ndarray, found: Any) -> bool:
    """Whether two results are one, apart from rounding."""
    if wanted.shape != found.shape:
        return False
    finite = wanted[np.isfinite(wanted)].astype(np.float64)
    scale = float(np.sqrt(np.mean(finite * finite))) if finite.size else 1.0
    return bool(np.allclose(wanted, found, RELATIVE, ABSOLUTE * max(1.0, scale), equal_nan=True))


def compared(path: Path, module: torch.nn.Module, example: Example, axes: Axes) -> str:
    """Either "right", with the sizes that were tried, or how the file differs from the module."""
    other = next(iter(example.variants(module, [SEED])), example)
    with prepared(module) as plain:
        call = ModuleCall(plain, other.args, other.kwargs)
        try:
            session = session_of(path)
            taken = {value.name for value in session.get_inputs()}
            tried: list[str] = []
            for sizes, feeds in _grown(call, axes):
                wanted = call.run(list(feeds.values()))
                found = session.run(None, {name: array(value) for name, value in feeds.items() if name in taken})
                if not all(map(same, map(array, wanted), found)):
                    return f"wrong at {sizes or 'the same sizes'}"
                tried.append(sizes)
        except Exception as error:
            return f"fails: {reason(error)[:100]}"
    return f"{RIGHT}, {'; '.join(filter(None, tried)) or 'no other size'}"


def _grown(call: ModuleCall, axes: Axes) -> Iterator[tuple[str, Feeds]]:
    """The call's inputs with all dynamic dimensions in other sizes, or each alone if the module refuses that."""
    dims = [*dict.fromkeys(term for _, dim in places_of(axes) for term in dim_terms(dim) if not term.isdecimal())]
    more = {dim: number + 1 for number, dim in enumerate(dims)}
    choices = [dims, *([dim] for dim in dims)] if len(dims) > 1 else [dims]
    for chosen in choices:
        feeds = call.feeds
        for place, dim in places_of(axes):
            extra = sum(more[term] for term in dim_terms(dim) if term in chosen)
            feeds = resized(feeds, [place], extra) if extra else feeds
        if refusal(call.run, feeds) is None:
            yield ", ".join(f"{dim} + {more[dim]}" for dim in chosen), feeds
            if chosen == dims:
                return


def tags(path: Path, module: torch.nn.Module, example: Example, feeds: Mapping[str, np.ndarray]) -> list[str]:
    """The nodes whose module is another than the one that ran them, found by value; empty if all are right."""
    try:
        with prepared(module) as plain:  # modules that were compiled or scripted have no hooks
            traced = tracer.trace(plain, example.args, example.kwargs)
        return list(truth.judge(truth.run_exposed(path, {**feeds, **state_of(path)[0]}), traced).disagreements)
    except Exception as error:
        return [f"not compared: {reason(error)[:100]}"]


def tag_cell(wrong: list[str] | None) -> str:
    """The tags of a file in one word."""
    if wrong is None:
        return ""
    return RIGHT if not wrong else wrong[0] if wrong[0].startswith("not compared") else f"{len(wrong)} wrong"

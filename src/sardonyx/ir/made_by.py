"""The metadata of a written model: the version of Sardonyx, and the options that it was made with.

There is no time and no path in it, so that the same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import onnx_ir as ir

from sardonyx.records.environment import environment

VERSION = "sardonyx.version"
OPTIONS = "sardonyx.options"  # a JSON object: the options of each command that wrote the model, without those not given


def write(model: ir.Model, command: str, options: Mapping[str, Any]) -> None:
    """Add a command with its options to the metadata of a model; those of earlier commands stay."""
    model.metadata_props[VERSION] = environment().sardonyx
    given = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    commands = {**read(model.metadata_props.get(OPTIONS, "")), command: given}
    model.metadata_props[OPTIONS] = json.dumps(commands, sort_keys=True, separators=(",", ":"))


def read(text: str) -> dict[str, Any]:
    """Return the options of each command from the metadata; none if another program wrote something else there."""
    try:
        commands = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", commands) if isinstance(commands, dict) else {}

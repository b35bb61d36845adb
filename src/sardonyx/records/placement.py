"""The record of `placement`: which nodes of a model run on a device, and which do not."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.records.base import Record

Away = Literal["elsewhere", "fails", "depends", "unknown"]


class AwayNodes(msgspec.Struct, frozen=True):
    """Nodes of one operator and one combination of types that do not run on the device."""

    operator: str
    types: tuple[str, ...]  # of the inputs; "" for one that is left out
    where: Away
    nodes: tuple[str, ...]
    modules: tuple[str, ...]


class PlacedModule(msgspec.Struct, frozen=True):
    """The own nodes of a module."""

    path: str
    tag: str
    nodes: int
    away: int  # of these, not on the device
    flops: int  # at the sizes of the example
    away_flops: int


class Placement(Record, frozen=True, tag="placement"):
    """Where the nodes of a model run, as the profile of a device predicts."""

    title = "a placement"
    model: str
    device: str
    runtime: str  # that was measured
    measured: str  # the day, and the machine
    nodes: int  # without Constants; bodies of control flow and functions included
    device_nodes: int
    host_nodes: int  # shape computations, which the runtime leaves on the CPU on purpose
    fallback_nodes: int
    unsupported_nodes: int
    unknown_nodes: int  # not measured, or dependent on attributes
    copies: int  # values that cross between the device and the CPU, those of shapes not counted
    away_flops: float  # share of all arithmetic that is not on the device
    away: tuple[AwayNodes, ...]  # the most nodes first
    modules: tuple[PlacedModule, ...]
    notes: tuple[str, ...] = ()

"""`sardonyx.placement`: which nodes of a model a device runs, which fall back to the CPU, and in which modules.

Nothing is run: the answers are those of the device's profile (`ir/device.py`). Runtimes leave shape computations on the
CPU on purpose: a node all of whose inputs are sizes, or small integers, is on the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.device import AWAY, Asked, Profile, Where, place, read_profile
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import Source, Tagged, owner, tagged
from sardonyx.ir.scopes import is_constant, label
from sardonyx.ir.shapes.expr import value_of
from sardonyx.records.bench import Away, AwayNodes, PlacedModule, Placement
from sardonyx.records.provenance import module_of
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.peak_memory import chosen_sizes

_SIZES = frozenset({"Shape", "Size"})  # their results are in the memory of the CPU on every device
_TAKES_SIZES = frozenset({"ConstantOfShape", "Range"})  # kernels of devices read these inputs on the CPU
_MAX_SHAPE_ELEMENTS = 64  # elements of a constant that goes with a shape computation
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


class Placed(Struct, frozen=True):
    """A node with its place."""

    node: ir.Node
    asked: Asked
    where: Where


def placement(model: Source, device: str) -> Placement:
    """Predict where each node of a model runs on a device.

    Args:
        model: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        device: A device with a profile ("cuda", "webgpu", …), or the file of a profile.

    Raises:
        UsageError: There is no such profile.
    """
    return placements(model, [device])[0]


def placements(model: Source, devices: Sequence[str]) -> list[Placement]:
    """Predict where each node of a model runs, on each of some devices.

    Args:
        model: See `placement`.
        devices: Devices with a profile, or files of profiles.

    Raises:
        UsageError: There is no such profile.
    """
    profiles = [read_profile(device) for device in devices]
    source = tagged(model)
    facts = Facts(source.model)
    facts.infer()
    flops = _flops(source.model)
    return [_on_device(source, facts, flops, profile) for profile in profiles]


def _on_device(source: Tagged, facts: Facts, flops: Mapping[str, int], profile: Profile) -> Placement:
    placed = list(placed_nodes(facts, profile))
    counts = Counter(each.where for each in placed)
    modules = _modules(placed, flops, lambda path: source.hierarchy.tag(path, torch_nn=True))
    away_flops = sum(each.away_flops for each in modules)
    return Placement(
        model=source.name,
        device=profile.device,
        runtime=profile.runtime,
        measured=f"{profile.measured}, {profile.machine}",
        nodes=len(placed),
        device_nodes=counts[Where.DEVICE],
        host_nodes=counts[Where.HOST],
        fallback_nodes=counts[Where.ELSEWHERE],
        unsupported_nodes=counts[Where.FAILS] + counts[Where.WRONG],
        unknown_nodes=counts[Where.UNKNOWN] + counts[Where.DEPENDS],
        copies=_copies(placed),
        away_flops=away_flops / (sum(flops.values()) or 1),
        away=_groups(placed),
        host=tuple(label(each.node) for each in placed if each.where is Where.HOST),
        modules=modules,
        notes=profile.notes(),
    )


def placed_nodes(facts: Facts, profile: Profile) -> Iterator[Placed]:
    """Yield every node with its place, in the order of the graph."""
    sizes: set[ir.Value] = set()  # that are in the memory of the CPU
    for scope in facts.live_scopes():
        for node in scope.graph:
            if is_constant(node):
                continue
            asked, where = place(node, facts, profile)
            if profile.falls_back and _computes_sizes(node, facts, sizes):
                where = Where.HOST
                sizes |= set(node.outputs)
            elif node.op_type in _SIZES:
                sizes |= set(node.outputs)
            yield Placed(node, asked, where)


def _computes_sizes(node: ir.Node, facts: Facts, sizes: set[ir.Value]) -> bool:
    given = [value for value in node.inputs if value is not None]
    return (
        node.op_type not in _TAKES_SIZES
        and any(value in sizes for value in given)
        and all(value in sizes or _is_small_integer(value, facts) for value in given)
    )


def _is_small_integer(value: ir.Value, facts: Facts) -> bool:
    tensor = facts.tensor(value)
    return tensor is not None and tensor.dtype in _INTEGERS and tensor.size <= _MAX_SHAPE_ELEMENTS


def _flops(model: ir.Model) -> dict[str, int]:
    """Return the arithmetic of each node of the top graph by its label, at the sizes of the example."""
    program = program_of(model)
    sizes = chosen_sizes(program, None)
    return {each.name: int(value_of(each.flops, sizes)) for each in program.operations}


def _modules(placed: Sequence[Placed], flops: Mapping[str, int], tag: Callable[[str], str]) -> tuple[PlacedModule, ...]:
    by_module: dict[str, list[Placed]] = defaultdict(list)
    for each in placed:
        by_module[module_of(owner(each.node))].append(each)
    made: list[PlacedModule] = []
    for path, members in sorted(by_module.items()):
        away = [each for each in members if each.where in AWAY]
        sums = [sum(flops.get(label(each.node), 0) for each in some) for some in (members, away)]
        made.append(PlacedModule(path, tag(path), len(members), len(away), *sums))
    return tuple(made)


def _groups(placed: Sequence[Placed]) -> tuple[AwayNodes, ...]:
    groups: dict[tuple[str, tuple[str, ...], Where], list[ir.Node]] = defaultdict(list)
    for each in placed:
        if each.where in AWAY:
            groups[each.asked.operator, each.asked.types, each.where].append(each.node)
    made = (
        AwayNodes(
            operator,
            types,
            cast("Away", where.value),
            tuple(map(label, nodes)),
            tuple(sorted({module_of(owner(node)) for node in nodes})),
        )
        for (operator, types, where), nodes in groups.items()
    )
    return tuple(sorted(made, key=lambda each: (-len(each.nodes), each.operator)))


def _copies(placed: Sequence[Placed]) -> int:
    """Return how many values one side computes and the other reads."""
    sides = {each.node: each.where is not Where.ELSEWHERE for each in placed if each.where is not Where.HOST}
    crossing = {
        value
        for node, side in sides.items()
        for value in node.inputs
        if value is not None and (maker := value.producer()) is not None and sides.get(maker, side) is not side
    }
    return len(crossing)

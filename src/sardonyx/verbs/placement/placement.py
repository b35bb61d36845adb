"""`sardonyx.placement`: which nodes of a model a device runs, which fall back to the CPU, and in which modules.

Nothing is run: the profile of the device, which `benchmarks/device_profiles.py` writes from the runtime's own
answers, lists combinations of element types for each operator and each of its versions. A combination that was not
measured is answered by those with the same first type if they all agree; otherwise the answer is "unknown". Runtimes
leave shape computations on the CPU on purpose: a node all of whose inputs are sizes, or small integers, is on the
host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import metadata, resources
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import UsageError, reason
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import Source, Tagged, owner, tagged
from sardonyx.ir.scopes import is_constant, label
from sardonyx.ir.shapes.expr import value_of
from sardonyx.records.bench import Away, AwayNodes, PlacedModule, Placement
from sardonyx.records.provenance import module_of
from sardonyx.verbs.analyze.census import attributes_of
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.peak_memory import chosen_sizes

_FOLDER = "profiles"


class Where(StrEnum):
    """What becomes of a node."""

    DEVICE = "device"  # it runs on the device
    HOST = "host"  # it computes a shape, which the runtime leaves on the CPU on purpose
    ELSEWHERE = "elsewhere"  # it falls back to the CPU
    FAILS = "fails"  # the runtime does not load a model with it
    DEPENDS = "depends"  # it runs on the device with some attributes only
    UNKNOWN = "unknown"  # it was not measured


Attributes: TypeAlias = Mapping[str, Any]


class Profile(msgspec.Struct, frozen=True):
    """The operators of a device."""

    device: str
    runtime: str  # with its version
    provider: str
    machine: str  # where it was measured
    measured: str  # the day
    how: str  # the command
    operators: Mapping[str, Mapping[str, Mapping[Where, Sequence[str]]]]  # by name, version and answer: types
    depends: Mapping[str, Sequence[tuple[Where, Attributes]]]  # for such types, the answer for attributes

    @property
    def falls_back(self) -> bool:
        """Whether nodes that the device does not have run on the CPU."""
        return self.runtime.startswith("onnxruntime") and self.provider != "CPUExecutionProvider"

    def answer(
        self, operator: str, opset: int, types: Sequence[str], attributes: Attributes, result: str = ""
    ) -> Where:
        """Return what becomes of a node.

        Args:
            operator: Its name, with the domain and a colon if that is not the standard one.
            opset: The version of its operator set.
            types: The element types of its inputs, "" for one that is left out.
            attributes: Its attributes.
            result: The element type of the first output, which matters for casts.
        """
        versions = self.operators.get(operator, {})
        version = max((int(each) for each in versions if int(each) <= opset), default=None)
        if version is None:
            return Where.UNKNOWN
        answers = versions[str(version)]
        by_types = {each: where for where, listed in answers.items() for each in listed}
        given = tuple(types)
        while given and not given[-1]:
            given = given[:-1]
        for wanted in (f"{','.join(given)}>{result}", ",".join(given)):
            if by_types.get(wanted) is Where.DEPENDS:
                return self._nearest(self.depends[f"{operator} {version} {wanted}"], attributes)
            if wanted in by_types:
                return by_types[wanted]
        first = given[0] if given else ""
        agreeing = {where for each, where in by_types.items() if each.partition(">")[0].split(",")[0] == first}
        return agreeing.pop() if len(agreeing) == 1 else Where.UNKNOWN

    def _nearest(self, cases: Sequence[tuple[Where, Attributes]], attributes: Attributes) -> Where:
        """Return the answer of the measured nodes with the fewest other attributes, if they agree."""
        names = {name for _, measured in cases for name in measured}
        others = [sum(measured.get(name) != attributes.get(name) for name in names) for _, measured in cases]
        nearest = {where for (where, _), number in zip(cases, others, strict=True) if number == min(others)}
        return nearest.pop() if len(nearest) == 1 else Where.DEPENDS


def names() -> list[str]:
    """Return the devices with a profile."""
    folder = resources.files("sardonyx.verbs.placement").joinpath(_FOLDER)
    return sorted(each.name.removesuffix(".json") for each in folder.iterdir() if each.name.endswith(".json"))


def read_profile(device: str) -> Profile:
    """Return the profile of a device, by its name or from a file.

    Raises:
        UsageError: there is none, or the file is not a profile.
    """
    if device in names():
        data = resources.files("sardonyx.verbs.placement").joinpath(_FOLDER, f"{device}.json").read_bytes()
    elif device.endswith(".json"):
        try:
            data = Path(device).read_bytes()
        except OSError as error:
            raise UsageError(f"{device} cannot be read: {reason(error)}") from error
    else:
        raise UsageError(
            f"there is no device {device!r}", hint=f"known: {', '.join(names())}, or the file of a profile"
        )
    try:
        return msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        how = "benchmarks/device_profiles.py writes them"
        raise UsageError(f"{device} is not the profile of a device: {reason(error)}", hint=how) from error


_SIZES = frozenset({"Shape", "Size"})  # their results are in the memory of the CPU on every device
_TAKES_SIZES = frozenset({"ConstantOfShape", "Range"})  # kernels of devices read these inputs on the CPU
_AWAY = (Where.ELSEWHERE, Where.FAILS, Where.DEPENDS, Where.UNKNOWN)
_SMALL = 64  # elements of a constant that goes with a shape computation
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


class Placed(Struct, frozen=True):
    """A node with its place."""

    node: ir.Node
    operator: str
    types: tuple[str, ...]
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
        unsupported_nodes=counts[Where.FAILS],
        unknown_nodes=counts[Where.UNKNOWN] + counts[Where.DEPENDS],
        copies=_copies(placed),
        away_flops=away_flops / (sum(flops.values()) or 1),
        away=_groups(placed),
        host=tuple(label(each.node) for each in placed if each.where is Where.HOST),
        modules=modules,
        notes=tuple(_notes(profile)),
    )


def placed_nodes(facts: Facts, profile: Profile) -> Iterator[Placed]:
    """Yield every node with its place, in the order of the graph."""
    sizes: set[ir.Value] = set()  # that are in the memory of the CPU
    for scope in facts.live_scopes():
        for node in scope.graph:
            if is_constant(node):
                continue
            domain = "" if node.domain in ("", "ai.onnx") else node.domain
            operator = f"{domain}:{node.op_type}" if domain else node.op_type
            types = tuple("" if value is None else _type(facts, value) for value in node.inputs)
            result = _type(facts, node.outputs[0]) if node.outputs else ""
            where = profile.answer(operator, facts.opset(node), types, attributes_of(node), result)
            if profile.falls_back and _computes_sizes(node, facts, sizes):
                where = Where.HOST
                sizes |= set(node.outputs)
            elif node.op_type in _SIZES:
                sizes |= set(node.outputs)
            yield Placed(node, operator, types, where)


def _type(facts: Facts, value: ir.Value) -> str:
    dtype = facts.dtype(value)
    return "?" if dtype is None else dtype.name.lower()


def _computes_sizes(node: ir.Node, facts: Facts, sizes: set[ir.Value]) -> bool:
    given = [value for value in node.inputs if value is not None]
    return (
        node.op_type not in _TAKES_SIZES
        and any(value in sizes for value in given)
        and all(value in sizes or _is_small_integer(value, facts) for value in given)
    )


def _is_small_integer(value: ir.Value, facts: Facts) -> bool:
    tensor = facts.tensor(value)
    return tensor is not None and tensor.dtype in _INTEGERS and tensor.size <= _SMALL


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
        away = [each for each in members if each.where in _AWAY]
        sums = [sum(flops.get(label(each.node), 0) for each in some) for some in (members, away)]
        made.append(PlacedModule(path, tag(path), len(members), len(away), *sums))
    return tuple(made)


def _groups(placed: Sequence[Placed]) -> tuple[AwayNodes, ...]:
    groups: dict[tuple[str, tuple[str, ...], Where], list[ir.Node]] = defaultdict(list)
    for each in placed:
        if each.where in _AWAY:
            groups[each.operator, each.types, each.where].append(each.node)
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


def _notes(profile: Profile) -> Iterator[str]:
    """Say if another version of the runtime is installed than was measured."""
    package, _, version = profile.runtime.partition(" ")
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        return
    if installed != version:
        yield f"the profile was measured with {profile.runtime}, and {installed} is installed: {profile.how} renews it"

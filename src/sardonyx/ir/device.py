"""Devices: which nodes a runtime runs on one, from its profile, and rewrites that move nodes away from it.

A profile is data that `benchmarks/device_profiles.py` writes from the runtime's own answers: combinations of element
types for each operator and each of its versions. A combination that was not measured is answered by those with the
same first type if they all agree; otherwise the answer is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import UsageError, reason
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import READS_SHAPE
from sardonyx.ir.origins import owner
from sardonyx.ir.plain_data import attributes_of, dtype_name
from sardonyx.ir.rules import Rule
from sardonyx.ir.scopes import is_constant, label
from sardonyx.ir.size_budget import dead_nodes
from sardonyx.ir.transaction import Substitution
from sardonyx.records.run import Refusal

_FOLDER = Path(__file__).parent / "devices"
_HOW = "benchmarks/device_profiles.py writes them"


class Where(StrEnum):
    """What becomes of a node."""

    DEVICE = "device"  # it runs on the device
    HOST = "host"  # it computes a shape, which the runtime leaves on the CPU on purpose
    ELSEWHERE = "elsewhere"  # it falls back to the CPU
    FAILS = "fails"  # the runtime does not load a model with it
    WRONG = "wrong"  # it runs on the device, with other values than on the CPU
    DEPENDS = "depends"  # it runs on the device with some attributes only
    UNKNOWN = "unknown"  # it was not measured


AWAY = (Where.ELSEWHERE, Where.FAILS, Where.WRONG, Where.DEPENDS, Where.UNKNOWN)
Attributes: TypeAlias = Mapping[str, Any]


class Profile(Struct, frozen=True):
    """The operators of a device."""

    device: str
    runtime: str  # with its version
    provider: str
    machine: str  # where it was measured
    measured: str  # the day
    how: str  # the command
    operators: Mapping[str, Mapping[str, Mapping[Where, Sequence[str]]]]  # by name, version and answer: types
    depends: Mapping[str, Sequence[tuple[Where, Attributes]]]  # for such types, the answer for attributes
    avoided: Mapping[str, str] = {}  # operators that run there and are slower than what passes make them of, and why

    @property
    def is_ort(self) -> bool:
        """Whether the runtime is ONNX Runtime, which has operators of its own."""
        return self.runtime.startswith("onnxruntime")

    @property
    def falls_back(self) -> bool:
        """Whether nodes that the device does not have run on the CPU."""
        return self.is_ort and self.provider != "CPUExecutionProvider"

    def notes(self) -> tuple[str, ...]:
        """Return a note if another version of the runtime is installed than was measured."""
        package, _, version = self.runtime.partition(" ")
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            return ()
        stale = f"the profile was measured with {self.runtime}, and {installed} is installed: {self.how} renews it"
        return () if installed == version else (stale,)

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


class Target(Struct, frozen=True):
    """What an optimized model is for."""

    name: str
    operators: Literal["portable", "ort"]  # those that passes may use: the standard ones, or ONNX Runtime's own as well
    device: Profile | None = None  # whose kernels a result must have, where the source has them

    @property
    def wants_fewest_nodes(self) -> bool:
        """Whether each node costs a launch, so that passes which are slower on a CPU alone run too."""
        return self.device is not None and self.device.falls_back


def names() -> list[str]:
    """Return the devices with a profile."""
    return sorted(each.stem for each in _FOLDER.glob("*.json"))


def shown_names() -> list[str]:
    """Return the devices on pages: those of ONNX Runtime on a CPU have nearly every operator."""
    return [name for name in names() if (profile := read_profile(name)).falls_back or not profile.is_ort]


def target_named(name: str) -> Target:
    """Return "portable", "ort", or the target of a device.

    Raises:
        UsageError: There is no such target, or the file is not a profile.
    """
    if name in ("portable", "ort"):
        return Target(name, name)
    if name not in names() and not name.endswith(".json"):
        known = ", ".join(("portable", "ort", *names()))
        raise UsageError(f"there is no target {name!r}", hint=f"known: {known}, or the file of a profile")
    profile = read_profile(name)
    return Target(name, "ort" if profile.is_ort else "portable", profile)


def read_profile(device: str) -> Profile:
    """Return the profile of a device, by its name or from a file.

    Raises:
        UsageError: There is none, or the file is not a profile.
    """
    if device in names():
        path = _FOLDER / f"{device}.json"
    elif device.endswith(".json"):
        path = Path(device)
    else:
        known = f"known: {', '.join(names())}, or the file of a profile"
        raise UsageError(f"there is no device {device!r}", hint=known)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise UsageError(f"{device} cannot be read: {reason(error)}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{device} is not the profile of a device: {reason(error)}", hint=_HOW) from error


class Asked(Struct, frozen=True):
    """A node as profiles list it: the operator, its version, and the element types of its inputs."""

    operator: str
    opset: int
    types: tuple[str, ...]

    def __str__(self) -> str:
        """Return the operator with the types."""
        types = ", ".join(filter(None, self.types))
        return f"{self.operator.rpartition(':')[2]} of {types}" if types else self.operator


def place(node: ir.Node, facts: Facts, profile: Profile, opset: int | None = None) -> tuple[Asked, Where]:
    """Return what a node is to a profile and what becomes of it; `opset` replaces that of the model."""
    domain = "" if node.domain in ("", "ai.onnx") else node.domain
    operator = f"{domain}:{node.op_type}" if domain else node.op_type
    types = tuple("" if value is None else _type(facts, value) for value in node.inputs)
    asked = Asked(operator, opset or facts.opset(node), types)
    result = _type(facts, node.outputs[0]) if node.outputs else ""
    return asked, profile.answer(operator, asked.opset, types, attributes_of(node), result)


def _type(facts: Facts, value: ir.Value) -> str:
    dtype = facts.dtype(value)
    return "?" if dtype is None else dtype_name(dtype)


def _lost(node: ir.Node, facts: Facts, profile: Profile) -> Asked | None:
    """Return what a node is if the device does not run it, or slowly; None if it does or the node computes sizes."""
    if is_constant(node) or (profile.falls_back and node.op_type in READS_SHAPE):
        return None
    asked, where = place(node, facts, profile)
    if asked.operator in profile.avoided:
        return asked
    if where not in AWAY or (profile.falls_back and all(facts.contents(value) is not None for value in node.inputs)):
        return None
    return asked


class Kernels:
    """Watches a run of the rewriter for new nodes that leave a device.

    A fusion may pass through an operator that the device lacks, and end in one that it has. So nothing is refused
    while the rewriter runs: the rewrites whose nodes are still there at its end, and are more than the nodes off the
    device which they removed, are those to forbid in another run.
    """

    def __init__(self, profile: Profile) -> None:
        """Watch one run."""
        self._profile = profile
        self._lost: dict[ir.Node, tuple[str, str, Refusal]] = {}  # nodes off the device that the source has not

    def observe(self, facts: Facts, rule: Rule, root: str, rewrite: Substitution) -> None:
        """Look at a replacement before it is performed."""
        lost = [(node, asked) for node in rewrite.nodes if (asked := _lost(node, facts, self._profile)) is not None]
        if not lost:
            return
        removed = dead_nodes(rewrite.match.nodes, rewrite.pairs)
        allowed = sum(node not in self._lost and _lost(node, facts, self._profile) is not None for node in removed)
        matched = rewrite.match.nodes
        for node, asked in lost[allowed:]:
            slow = self._profile.avoided.get(asked.operator)
            why = f"{self._profile.device} has no kernel for {asked}" if slow is None else f"slower there: {slow}"
            refusal = Refusal(rule.name, why, tuple(map(label, matched)), owner(matched[-1]))
            self._lost[node] = (rule.name, root, refusal)

    def unfit(self) -> dict[tuple[str, str], Refusal]:
        """Return the rewrites to forbid, by pass and root, each with its refusal."""
        return {(name, root): refusal for node, (name, root, refusal) in self._lost.items() if node.graph is not None}


# Kernels that take as long as a copy to the CPU and back, for which the device must finish: an estimate.
_FALLBACK_KERNELS = 20


def cost(profile: Profile, facts: Facts) -> float:
    """Return about how many kernels a run of a model starts; a node off the device counts as several."""
    total = 0.0
    for scope in facts.live_scopes():
        for node in scope.graph:
            if _lost(node, facts, profile) is None:
                total += not is_constant(node)
            else:
                total += inf if place(node, facts, profile)[1] in (Where.FAILS, Where.WRONG) else _FALLBACK_KERNELS
    return total


def opset_without_loss(profile: Profile, facts: Facts, highest: int) -> int:
    """Return the highest opset to which a model can be raised so that the device runs every node that it runs now."""
    nodes = [node for scope in facts.live_scopes() for node in scope.graph if not (node.domain or is_constant(node))]
    here = [node for node in nodes if place(node, facts, profile)[1] not in AWAY]
    now = facts.model.opset_imports.get("", highest)
    for version in range(highest, now, -1):
        if all(place(node, facts, profile, version)[1] not in AWAY for node in here):
            return version
    return now

"""What a device runs, as measured: `benchmarks/device_profiles.py` writes a profile from the runtime's own answers.

A profile lists combinations of element types for each operator and each of its versions. A combination that was not
measured is answered by those with the same first type if they all agree; otherwise the answer is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from sardonyx.errors import UsageError, reason

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


def read(device: str) -> Profile:
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

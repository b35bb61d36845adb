"""The record of `locate`: the first module whose outputs differ in two models, and what each module contributes."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import Environment


class LocatedModel(msgspec.Struct, frozen=True):
    """One of the two models."""

    name: str
    kind: str  # "onnx" or "torch"
    runtime: str


class ModuleShare(msgspec.Struct, frozen=True):
    """The part of the final error that one module, or a few in a row, causes."""

    module: str  # instance path; the lowest common one of `modules`
    share: float  # of the squared error of the outputs
    modules: tuple[str, ...] = ()  # the modules, in order of execution, if there are several
    error: float | None = None  # relative error of the module's last output, root mean square
    alone: float | None = None  # part of the squared error that goes away if only this module is the first model's


class Substitution(msgspec.Struct, frozen=True):
    """A border at which the second model got the first model's values, and the error of the outputs that is left."""

    place: int  # of the border in the order of execution; 0: the inputs
    module: str  # that computes the border value
    value: str  # name of the border value in the second model
    error: float  # relative, root mean square


class DifferingModule(msgspec.Struct, frozen=True):
    """The first module whose outputs differ beyond the tolerance although its inputs do not."""

    module: str  # instance path
    tag: str
    value: str  # name of the output in the second model
    error: float  # relative, root mean square
    reason: str  # the violated rule
    share: float | None  # of the squared error of the outputs; None: it could not be measured
    nodes: tuple[str, ...]  # nodes of the second model between the last equal values and this one
    modules: tuple[str, ...] = ()  # all modules of these nodes if they have no common border in both models


class Location(Record, frozen=True, tag="location"):
    """Where two models begin to differ."""

    title = "a location"
    environment: Environment
    first: LocatedModel
    second: LocatedModel
    same: bool  # the outputs agree within the tolerance
    gradual: bool  # the error accumulates over many modules
    module: DifferingModule | None  # None: the outputs agree
    shares: tuple[ModuleShare, ...]  # largest first
    spread: float  # effective number of modules that cause the error: 1 / sum of squared shares
    error: float  # relative error of the outputs, root mean square
    failures: tuple[str, ...]  # outputs that differ
    trial: str  # the inputs on which the models were compared
    borders: int  # values at module borders that could be compared
    unpaired: tuple[str, ...]  # modules without a border of their own in one of the models
    runs: int  # runs of either model
    substitutions: tuple[Substitution, ...]  # in the order of execution
    peak_bytes: int  # largest memory of the process that runs the models
    seconds: float
    notes: tuple[str, ...] = ()

"""The experiments of a study, in the order they are planned and told. A new one is one file and one line here."""

from __future__ import annotations

from sardonyx.studying.experiment import Experiment
from sardonyx.studying.experiments.forensics import Forensics
from sardonyx.studying.experiments.shape_chains import ShapeChains
from sardonyx.studying.experiments.tolerance import Tolerance

ALL: tuple[Experiment, ...] = (
    Tolerance(),
    Forensics(),
    ShapeChains(),
)

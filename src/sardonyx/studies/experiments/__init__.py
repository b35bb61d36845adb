"""The experiments of a study, in the order of their reports. A new one is one file and one line here."""

from __future__ import annotations

from sardonyx.studies.experiment import Experiment
from sardonyx.studies.experiments.activations import ConvRelu
from sardonyx.studies.experiments.attribution import Attribution
from sardonyx.studies.experiments.correlation import Correlation
from sardonyx.studies.experiments.families import Families
from sardonyx.studies.experiments.forensics import Forensics
from sardonyx.studies.experiments.order import Order
from sardonyx.studies.experiments.overview import Overview
from sardonyx.studies.experiments.shape_chains import ShapeChains
from sardonyx.studies.experiments.tolerance import Tolerance

ALL: tuple[Experiment, ...] = (
    Overview(),
    Attribution(),
    Order(),
    Correlation(),
    Tolerance(),
    Forensics(),
    ShapeChains(),
    Families(),
    ConvRelu(),
)

"""The experiments of a study, in the order they are planned and told. A new one is one file and one line here."""

from __future__ import annotations

from sardonyx.studying.experiment import Experiment
from sardonyx.studying.experiments.activations import ConvRelu
from sardonyx.studying.experiments.attribution import Attribution
from sardonyx.studying.experiments.correlation import Correlation
from sardonyx.studying.experiments.families import Families
from sardonyx.studying.experiments.forensics import Forensics
from sardonyx.studying.experiments.order import Order
from sardonyx.studying.experiments.overview import Overview
from sardonyx.studying.experiments.shape_chains import ShapeChains
from sardonyx.studying.experiments.tolerance import Tolerance

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

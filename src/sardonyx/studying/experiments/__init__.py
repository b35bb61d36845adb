"""The experiments of a study, in the order they are planned and told. A new one is one file and one line here."""

from __future__ import annotations

from sardonyx.studying.experiment import Experiment

ALL: tuple[Experiment, ...] = ()

"""Partition a program into fusion regions: operations that could be one kernel, by explicit rules.

A region is an estimate of what a compiler could fuse. It records which bytes must cross its boundary.
"""

from __future__ import annotations

from sardonyx.records.analysis import ALONE
from sardonyx.verbs.analyze.costs.dataflow import Partition, Region
from sardonyx.verbs.analyze.costs.regions.rules import RULES, partition

__all__ = ["ALONE", "RULES", "Partition", "Region", "partition"]

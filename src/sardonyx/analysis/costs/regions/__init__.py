"""Partition a program into fusion regions: operations that could be one kernel, by explicit rules.

A region is an estimate of what a compiler could fuse. It records which bytes must cross its boundary.
"""

from __future__ import annotations

from sardonyx.analysis.costs.regions.region import Partition, Region
from sardonyx.analysis.costs.regions.rules import RULES, partition
from sardonyx.records.analysis import ALONE

__all__ = ["ALONE", "RULES", "Partition", "Region", "partition"]

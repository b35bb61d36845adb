"""Fused regions: which operations could be one kernel, by explicit rules, and what each region moves.

A region is a candidate, not a kernel: what is said of it is what must cross its border and what need not.
"""

from __future__ import annotations

from sardonyx.analysis.costs.regions.partitioning import RULES, partition
from sardonyx.analysis.costs.regions.region import ALONE, Partition, Region

__all__ = ["ALONE", "RULES", "Partition", "Region", "partition"]

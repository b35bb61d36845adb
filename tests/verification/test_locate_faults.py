"""A part of the campaign of planted faults: `sardonyx.locate` names the module that has the fault.

The campaign itself, over more models and more faults, is `benchmarks/locate.py`.
"""

from __future__ import annotations

import collections
import itertools

import locate


def test_the_modules_of_planted_faults_are_named() -> None:
    planted = locate.faults("cnn", "torchscript", per_kind=1, seed=3, known=set(), forms=locate.FORMS[:2])
    outcomes = list(itertools.islice(planted, 14))
    results = collections.Counter(one["result"] for one in outcomes)
    assert [one for one in outcomes if one["result"] in ("wrong", "gradual")] == []
    assert results["named"] + results["enclosing"] >= 10
    assert {one["form"] for one in outcomes} == {"exported", "optimized"}


def test_faults_are_named_without_tags() -> None:
    outcomes: list[locate.Outcome] = []
    for form in ("saved", "untagged"):
        planted = locate.faults("cnn", "dynamo", per_kind=1, seed=3, known=set(), forms=[form])
        outcomes += itertools.islice(planted, 5)
    assert [one for one in outcomes if one["result"] in ("wrong", "gradual")] == []
    named = collections.Counter(one["form"] for one in outcomes if one["result"] == "named")
    assert named["saved"] >= 4
    assert named["untagged"] == 5

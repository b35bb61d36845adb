"""How onnx's node cases are written in newer opsets, from every opset in which they are valid: the same as before."""

from __future__ import annotations

import zlib
from random import Random

import onnx
import pytest

import recorded
from backend.cases import node_cases
from backend.test_raised_cases import written_in
from known_sizes import variant
from raised import raised
from sardonyx.errors import ModelError
from sardonyx.ir.opset_raising import CHANGES, NEWEST, OLDEST

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_are_rewritten_for_newer_opsets_as_before(part: int) -> None:
    found: dict[str, list[int]] = {}
    for number, case in enumerate(node_cases()):
        operator = case.model.graph.node[0].op_type
        if operator not in CHANGES or zlib.crc32(operator.encode()) % PARTS != part:
            continue
        choose = Random(number)
        for old in range(OLDEST, NEWEST):
            for new in {NEWEST, choose.randint(old + 1, NEWEST)} if choose.random() < 0.4 else ():
                model = written_in(variant(case, frozen=choose.random() < 0.7, symbolic=False), old)
                try:
                    after, why = raised(model, new)
                except ModelError as error:
                    after, why = None, str(error)
                good, refused, text = found.setdefault(operator, [0, 0, 0])
                told = why if after is None else onnx.printer.to_text(after.graph)
                found[operator] = [
                    good + (after is not None),
                    refused + (after is None),
                    zlib.crc32(told.encode(), text),
                ]
    recorded.check("raised", found)

"""Plots as files: one for each kind of data, well formed, deterministic, and with names escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import Wiring
from sardonyx.reporting.plots.module_contents import MOST_BOXES, top_module
from sardonyx.reporting.report import module_picture, pictures
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()


def test_every_measurement_has_a_plot() -> None:
    files = pictures(RunBundle("some", RUN))
    assert list(files) == ["map-nodes.svg", "map-bytes.svg", "module-graph.svg"]
    assert list(pictures(RunBundle("some", replace(RUN, wiring_after=None)))) == ["map-nodes.svg", "map-bytes.svg"]
    for text in files.values():
        ElementTree.fromstring(text)
    assert files == pictures(RunBundle("some", RUN))


def test_a_module_is_drawn_before_and_after_with_what_changed() -> None:
    text = module_picture(RUN, "encoder.layer.0.output").file()
    assert re.findall(r'class="file"[^>]*>(\w+)', text) == ["Before", "After"]
    before, after = text.split(">After<")
    assert before.count("box gone") == 4  # MatMul and Add become one, the Identity and a folded Transpose go
    assert "box made" not in before
    assert after.count("box made") == 1
    assert "+ Gemm" in after


def test_the_top_module_is_the_first_with_more_than_one_part() -> None:
    assert top_module(RUN) == ""
    nested = Wiring(("m.inner", "m.inner.x"), ("a", "b"), ("Add", "Mul"), (0, 1), ((0, 1),), {}, {})
    assert top_module(replace(RUN, wiring_before=nested)) == "m.inner"


def test_a_module_that_is_gone_or_too_large_has_a_note() -> None:
    size = MOST_BOXES + 1
    names = tuple(f"n{at}" for at in range(size))
    flat = Wiring(("a",), names, ("Relu",) * size, (0,) * size, (), {}, {})
    none = Wiring((), (), (), (), (), {}, {})
    text = module_picture(replace(RUN, wiring_before=flat, wiring_after=none), "a").file()
    assert "401 boxes: too many" in text
    assert "This module does not exist here." in text


def test_names_are_text() -> None:
    hostile = '"><script>alert(1)</script>\x1b'
    wiring = Wiring(("", hostile), (hostile, "b"), (hostile, "Add"), (0, 1), ((0, 1),), {hostile: (0,)}, {hostile: 1})
    run = replace(RUN, wiring_before=wiring, wiring_after=wiring)
    for text in (*pictures(RunBundle(hostile, run)).values(), module_picture(run, hostile).file()):
        ElementTree.fromstring(text)
        assert "<script" not in text
        assert "\x1b" not in text

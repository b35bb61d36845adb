"""Plots as files: one for each kind of data, well formed, deterministic, and with names escaped."""

from __future__ import annotations

from xml.etree import ElementTree

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import Wiring
from sardonyx.reporting.module_contents import top_module
from sardonyx.reporting.report import pictures
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()


def test_every_measurement_has_a_plot() -> None:
    files = pictures(RunBundle("some", RUN))
    assert list(files) == ["map-nodes.svg", "map-bytes.svg"]
    for text in files.values():
        ElementTree.fromstring(text)
    assert files == pictures(RunBundle("some", RUN))


def test_the_top_module_is_the_first_with_more_than_one_part() -> None:
    assert RUN.wiring_before is not None
    assert top_module(RUN.wiring_before) == ""
    nested = Wiring(("m.inner", "m.inner.x"), ("a", "b"), ("Add", "Mul"), (0, 1), ((0, 1),), {}, {})
    assert top_module(nested) == "m.inner"


def test_names_are_text() -> None:
    hostile = '"><script>alert(1)</script>\x1b'
    wiring = Wiring(("", hostile), (hostile, "b"), (hostile, "Add"), (0, 1), ((0, 1),), {hostile: (0,)}, {hostile: 1})
    run = replace(RUN, wiring_before=wiring, wiring_after=wiring)
    for text in pictures(RunBundle(hostile, run)).values():
        ElementTree.fromstring(text)
        assert "<script" not in text
        assert "\x1b" not in text

"""The trace nests strictly for any timeline, and the icicle plot has correct widths, colours and names."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_profile import sample_profile
from reporting.written import in_terminal
from sardonyx.records.bench import ModuleTime, Profile, Slice
from sardonyx.reporting.plots.profile import icicle_svg, trace
from sardonyx.reporting.profile import profile_document

PROFILE = sample_profile()
Event = dict[str, Any]


def slices(profile: Profile, pid: int = 1) -> list[Event]:
    events = json.loads(trace(profile))["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["pid"] == pid]


def bounds(event: Event) -> tuple[int, int]:
    start = round(1000 * event["ts"])
    return start, start + round(1000 * event["dur"])


def check(profile: Profile) -> None:
    """Any two slices are disjoint or nested; every kernel is inside its module, every module inside its parent."""
    for number, model in enumerate(profile.models, 1):
        known = {module.path for module in model.modules}
        before: list[tuple[int, int, str | None]] = []
        kernels = 0
        for event in slices(profile, number):
            start, end = bounds(event)
            assert start <= end
            for left, right, _ in before:
                assert end <= left or right <= start or (left <= start and end <= right)
            is_module = event["cat"] == "module"
            kernels += not is_module
            path = event["args"]["path" if is_module else "module"]
            inside = {other for left, right, other in before if left <= start and end <= right}
            if path is not None:
                steps = path.split(".") if path else []
                above = {"", *(".".join(steps[:at]) for at in range(1, len(steps) + (not is_module)))} & known
                assert above - {path if is_module else None} <= inside
            before.append((start, end, path if is_module else None))
        assert kernels == len(model.timeline)


def test_kernels_are_inside_their_modules_and_modules_inside_their_parents() -> None:
    check(PROFILE)
    names = [event["name"] for event in slices(PROFILE)]
    assert names[:6] == ["Net", "embed (Embedding)", "Gather embed", "layer", "0 (Layer)", "attn (Attention)"]


def test_a_module_gets_a_new_slice_when_it_runs_again() -> None:
    model = PROFILE.models[0]
    order = [0, 1, 0, 2]
    timeline = tuple(Slice(kernel, 10.0 * at, 9.0) for at, kernel in enumerate(order))
    profile = replace(PROFILE, models=(replace(model, timeline=timeline),))
    check(profile)
    opened = [event["args"]["path"] for event in slices(profile) if event["cat"] == "module"]
    assert opened == ["", "embed", "layer", "layer.0", "layer.0.attn", "embed", "layer", "layer.0"]


def test_a_body_is_inside_the_kernel_that_runs_it() -> None:
    ends = {event["name"]: bounds(event) for event in slices(PROFILE) if event["cat"] != "module"}
    assert ends["Loop loop"][0] < ends["Add body"][0] < ends["Add body"][1] < ends["Loop loop"][1]


def test_each_file_is_a_process_with_its_name() -> None:
    events = json.loads(trace(PROFILE))["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {1: "before.onnx", 2: "after.onnx"}
    assert "\\u001b" not in trace(PROFILE).decode()
    assert any(event.get("cat") == "kernel,not attributed" for event in events)


SLICES = st.lists(
    st.builds(Slice, st.integers(0, len(PROFILE.models[0].kernels) - 1), st.floats(0, 50), st.floats(0, 20)),
    max_size=25,
)


@given(SLICES)
def test_slices_nest_for_any_timeline(timeline: list[Slice]) -> None:
    check(replace(PROFILE, models=(replace(PROFILE.models[0], timeline=tuple(timeline)),)))


def rects(text: str, kind: str) -> list[dict[str, Any]]:
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    boxes: list[dict[str, Any]] = []
    for rect in root.iter(f"{space}rect"):
        title = rect.find(f"{space}title")
        if re.search(kind, rect.get("class", "")) and title is not None:
            place = {key: float(rect.get(key, "0")) for key in ("x", "y", "width", "height")}
            boxes.append({**place, "class": rect.get("class"), "title": title.text or ""})
    return boxes


def test_bar_widths_follow_time_and_children_are_below_their_parents() -> None:
    bars = rects(icicle_svg(PROFILE, "t"), "bar|other")
    scale = 912 / PROFILE.models[0].kernel_ms
    wholes = [bar["width"] for bar in bars if bar["title"].startswith("(model)")]
    assert wholes == [round(model.modules[0].total_ms * scale, 2) for model in PROFILE.models]
    for bar in (bar for bar in bars if bar["title"].startswith("layer.")):
        above = bar["title"].split()[0].rpartition(".")[0]
        assert any(
            other["title"].split()[0] == f"{above}:" or other["title"].split()[0] == above
            for other in bars
            if other["x"] - 0.02 <= bar["x"]
            and bar["x"] + bar["width"] <= other["x"] + other["width"] + 0.02
            and bar["y"] - other["y"] == 22
        )


def test_bars_of_one_row_follow_one_another() -> None:
    rows: dict[float, list[dict[str, Any]]] = {}
    for bar in rects(icicle_svg(PROFILE, "t"), "bar|other|no-module"):
        rows.setdefault(bar["y"], []).append(bar)
    for row in rows.values():
        row.sort(key=lambda bar: bar["x"])
        for left, right in itertools.pairwise(row):
            assert left["x"] + left["width"] <= right["x"] + 0.02


def test_a_module_type_has_one_colour_in_every_panel() -> None:
    text = icicle_svg(PROFILE, "t")
    looks = re.findall(r'<g class="(own\d)">\n<rect class="([^"]+)"[^>]*><title>(\S+) Attention:', text)
    assert len({look[:2] for look in looks}) == 1
    assert len(looks) == 6


def test_the_picture_is_the_same_every_time_and_safe() -> None:
    hostile = ModuleTime('x"><script>', "/Net/<b>", 5.0, 5.0, 1, 1, 0.5)
    model = replace(PROFILE.models[0], label="<script>&", modules=(*PROFILE.models[0].modules, hostile))
    profile = replace(PROFILE, models=(model,))
    text = icicle_svg(profile, "<title>\x1b")
    assert text == icicle_svg(profile, "<title>\x1b")
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "\x1b" not in text


def test_unattributed_time_is_drawn_separately() -> None:
    (before, _after) = rects(icicle_svg(PROFILE, "t"), "no-module")
    assert before["title"] == "not attributed: 0.062 ms (0.6 %)"


def test_labels_are_drawn_only_where_they_fit() -> None:
    labelled = r'width="([\d.]+)"[^>]*><title>[^<]*</title></rect>\n<text class="label"[^>]*>([^<]*)<'
    matches = re.findall(labelled, icicle_svg(PROFILE, "t"))
    assert matches
    for width, label in matches:
        assert len(label) * 6.9 <= float(width)


@pytest.mark.medium
def test_a_path_may_have_any_depth() -> None:
    model = PROFILE.models[0]
    deep = ".".join(["a"] * 2000)
    module = ModuleTime(deep, "/Net/Deep", 1.0, 1.0, 1, 1, 0.1)
    kernel = replace(model.kernels[0], owner=deep)
    model = replace(model, modules=(*model.modules, module), kernels=(kernel, *model.kernels[1:]))
    profile = replace(PROFILE, models=(model,))
    check(profile)
    assert "Deep" in icicle_svg(profile, "t")
    assert "Deep" in in_terminal(profile_document, profile)

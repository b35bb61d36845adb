"""Rewrites on the page: each is in the data once and equals the record, equal shapes are grouped, names are text."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import Event, NodeRef, RewriteKind, Run
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.rewrites import MAX_DRAWN_NODES, State, rewrite_data, section, shaped
from sardonyx.reporting.page.section import Strings
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
    "a\u202eb\n\x1b[31m",
    "",
)
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12), st.from_regex(r"layer\.\d\.(a|b)", fullmatch=True))
values = st.sampled_from(["", "x", "y", "z", "é", "𝄞w", "𝄞x"])
nodes = st.builds(
    NodeRef,
    texts,
    st.sampled_from(["Add", "Mul", "com.x::<b>"]),
    st.lists(values, max_size=3).map(tuple),
    st.lists(values, max_size=2).map(tuple),
    texts,
)
events = st.builds(
    Event,
    st.sampled_from(["fuse-gemm", "unknown-pass"]),
    st.sampled_from(RewriteKind),
    st.one_of(values, texts),
    st.lists(nodes, max_size=4).map(tuple),
    st.lists(nodes, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    texts,
    st.sampled_from(["", "body of If"]),
    st.sampled_from(["a.py:1", "a.py:2"]),
)


def written_out(table: dict[str, Any]) -> list[str]:
    """The same as `readStrings`, counting characters as scripts do."""
    last, names = b"", list[str]()
    for shared, rest in zip(table["shared"], table["rest"], strict=True):
        last = last[: 2 * shared] + rest.encode("utf-16-le")
        names.append(last.decode("utf-16-le"))
    return names


def read_back(data: dict[str, Any]) -> list[Event]:
    """The same as `readRewrites`, as records."""
    data = msgspec.json.decode(msgspec.json.encode(data))
    names, modules = written_out(data["names"]), written_out(data["modules"])
    events: list[Event] = []
    for place, owner, origins, owners, body, root, *rest in data["events"]:
        shape = data["shapes"][place]
        called = [names[at] for at in rest]
        of_values = [*called[len(shape["parts"]) :], ""]  # -1, the last one, stands for a missing value
        refs = [
            (
                NodeRef(
                    called[at],
                    op_type,
                    tuple(of_values[value] for value in inputs),
                    tuple(of_values[value] for value in outputs),
                    modules[data["lists"][owners][at]],
                ),
                state == State.MADE,
            )
            for at, (op_type, state, inputs, outputs) in enumerate(shape["parts"])
        ]
        assert shape["root"] < 0 or of_values[shape["root"]] == names[root]
        events.append(
            Event(
                shape["pass"],
                RewriteKind(shape["kind"]),
                names[root],
                tuple(ref for ref, made in refs if not made),
                tuple(ref for ref, made in refs if made),
                tuple(modules[at] for at in data["lists"][origins]),
                modules[owner],
                names[body],
                shape["source"],
            )
        )
    return events


@pytest.mark.slow
@given(st.lists(events, max_size=6).map(tuple))
def test_every_rewrite_is_in_the_data_once_and_reads_back_equal(generated: tuple[Event, ...]) -> None:
    assert read_back(rewrite_data(replace(RUN, events=generated))) == list(generated)


def test_the_rewrites_of_the_sample_read_back() -> None:
    assert read_back(rewrite_data(RUN)) == list(RUN.events)


@given(st.lists(texts))
def test_a_table_of_names_reads_back(names: list[str]) -> None:
    table = Strings(names)
    assert written_out(table.data()) == table.texts == sorted(set(names))
    assert all(table.texts[place] == text for text, place in table.at.items())


@given(events, st.permutations(["p", "q", "r", "s", "t", "u"]))
def test_renamed_values_have_the_same_shape(event: Event, names: list[str]) -> None:
    other = dict(zip(("x", "y", "z", "é", "𝄞w", "𝄞x"), names, strict=True)) | {"": ""}

    def renamed(node: NodeRef) -> NodeRef:
        inputs, outputs = (tuple(other[value] for value in each) for each in (node.inputs, node.outputs))
        return replace(node, name=f"{node.name} again", inputs=inputs, outputs=outputs, owner="elsewhere")

    mentioned = {value for node in (*event.before, *event.after) for value in (*node.inputs, *node.outputs)}
    root = other[event.root] if event.root in mentioned else "nowhere else"
    twin = replace(
        event, root=root, before=tuple(map(renamed, event.before)), after=tuple(map(renamed, event.after)), owner="o"
    )
    first, second = shaped([event], ()) + shaped([twin], ())
    assert first.shape == second.shape


def test_other_wiring_operators_or_passes_are_another_shape() -> None:
    one, two = (NodeRef(name, "Add", ("x", "y"), (f"{name}_out",)) for name in ("one", "two"))
    joined = replace(two, inputs=("x", "one_out"))
    event = Event("p", RewriteKind.FUSE, "two_out", (one, joined), (), (), "", "", "p.py:1")
    others = (
        replace(event, before=(one, two)),
        replace(event, before=(one, replace(joined, inputs=("one_out", "x")))),
        replace(event, before=(one, replace(joined, inputs=("x", "")))),
        replace(event, before=(one, replace(joined, op_type="Mul"))),
        replace(event, before=(one,), after=(joined,)),
        replace(event, pass_name="q"),
        replace(event, kind=RewriteKind.FOLD),
        replace(event, root="one_out"),
    )
    shapes = [each.shape for event in (event, *others) for each in shaped([event], ())]
    assert len(set(shapes)) == len(shapes)


def test_a_matched_node_present_later_was_kept_and_a_reused_name_was_not() -> None:
    def node(name: str, op_type: str = "Add") -> NodeRef:
        return NodeRef(name, op_type, ("x",), (f"{name}_out",))

    run = [
        Event(
            "p", RewriteKind.FUSE, "b_out", (node("a"), node("b")), (node("b", "Gemm"),), (), "", "", ""
        ),  # a is read again
        Event("p", RewriteKind.FUSE, "c_out", (node("a"), node("k"), node("c")), (node("d"),), (), "", "", ""),
        Event("p", RewriteKind.BYPASS, "b_out", (node("b", "Gemm"),), (), (), "", "", ""),
    ]
    states = [[part.state for part in each.shape.parts] for each in shaped(run, ["k", "d"])]
    gone, kept, made = State.GONE, State.KEPT, State.MADE
    assert states == [[kept, gone, made], [gone, kept, gone, made], [gone]]


def test_a_rewrite_of_a_whole_model_is_counted_and_not_drawn() -> None:
    many = tuple(
        NodeRef(f"n{at}", "Pad" if at % 3 else "Clip", ("x",), (f"v{at}",)) for at in range(MAX_DRAWN_NODES + 1)
    )
    run = replace(RUN, events=(Event("raise-opset", RewriteKind.FUSE, "opset 20", many, (), (), "", "", ""),))
    data = rewrite_data(run)
    assert data["shapes"][0]["counted"] == ((("Pad", 40), ("Clip", 21)), ())
    assert data["shapes"][0]["parts"] == ()
    assert len(data["events"][0]) == 6


def test_records_without_node_inputs_list_nodes_without_a_drawing() -> None:
    bare = Event("p", RewriteKind.FUSE, "y", (NodeRef("a", "Add"),), (NodeRef("b", "Mul"),), (), "", "", "")
    (shape,) = rewrite_data(replace(RUN, events=(bare,), wiring_after=None))["shapes"]
    assert [(inputs, outputs) for _, _, inputs, outputs in shape["parts"]] == [((), ()), ((), ())]


def test_the_table_is_complete_without_a_script() -> None:
    html = " ".join(str(section(RunBundle("m", RUN)).html).split())
    assert "137 rewrites by 3 passes" in html
    assert re.search(r"fuse-gemm</a></th> <td class=\"num\">12</td> <td class=\"num\">−12</td>", html)
    assert "encoder.layer.0…11.output" in html


def test_a_run_without_rewrites_has_a_message() -> None:
    idle = replace(RUN, events=(), passes=tuple(replace(each, rewrites=0, modules={}) for each in RUN.passes))
    made = section(RunBundle("m", idle))
    assert "Nothing was rewritten" in made.html
    assert made.data is None


def hostile(run: Run) -> Run:
    bad = HOSTILE[0]
    ref = NodeRef(bad, bad, (bad, HOSTILE[1]), (HOSTILE[3],), bad)
    event = Event(bad, RewriteKind.FUSE, HOSTILE[3], (ref,), (replace(ref, op_type=HOSTILE[1]),), (bad,), bad, bad, bad)
    record = replace(run.passes[0], name=bad, algebra=HOSTILE[1], about=bad, modules={bad: 1, HOSTILE[1]: 2})
    return replace(run, events=(event,), passes=(record,))


@pytest.mark.slow
def test_names_are_text_in_the_markup_and_in_the_data() -> None:
    made = section(RunBundle("m", hostile(RUN)))
    assert "<script" not in made.html
    assert "<img" not in made.html
    page = render_page([RunBundle("m", hostile(RUN))])
    assert page.count("alert(1)") > 3  # as text
    assert not re.search(r"<(script|img)[^>]*>\s*alert|<img src=x", page)

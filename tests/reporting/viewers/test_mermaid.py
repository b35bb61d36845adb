"""Mermaid text: how a module is written, and that names from a model are escaped."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.sample_run import sample_run
from sardonyx.records.run import Wiring
from sardonyx.reporting.module_contents import MAX_ELEMENTS, module_mermaid, quoted

RUN = sample_run()
LABEL = r'"[\w \-./:,()·…#;]*"'
LINE = re.compile(
    rf"flowchart TD|  n\d+(\[{LABEL}\]|\[\[{LABEL}\]\]|\(\[{LABEL}\]\))|  n\d+ --> n\d+|  class [n\d,]+ \w+"
    r"|  classDef \w+ [\w:#,\- ]+"
)
HOSTILE = st.text(max_size=30) | st.sampled_from([
    '"]; click n0 "javascript:alert(1)"',
    "a\nclick n0 href",
    "%%{init: {'securityLevel': 'loose'}}%%",
    "<img src=x onerror=alert(1)>",
    "#quot;<b>#60;script#62;",
    "```\n</details><script>",
    "~~~",
    "&lt;script&gt;",
    "end",
    "`**bold**`",
])  # fmt: skip


def drawn(wiring: Wiring) -> str:
    return module_mermaid(wiring, wiring, "")


def unescaped(text: str) -> str:
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), text)


@pytest.mark.medium
@given(HOSTILE)
def test_a_name_is_shown_literally(name: str) -> None:
    written = quoted(name)
    assert re.fullmatch(LABEL, f'"{written}"')
    assert unescaped(written).isprintable()
    if name.isprintable():
        assert unescaped(written) == name


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_every_line_has_a_known_form(op_type: str, path: str, given: str, made: str) -> None:
    wiring = Wiring(("", path), ("a", "b"), (op_type, op_type), (0, 1), ((0, 1),), {given: (0,)}, {made: 1})
    text = drawn(wiring)
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line


def test_a_module_has_its_nodes_neighbours_and_new_nodes() -> None:
    before, after = RUN.wiring_before, RUN.wiring_after
    assert before is not None
    assert after is not None
    text = module_mermaid(before, after, "encoder.layer.0.output")
    assert '["Gemm (new)"]' in text
    assert '(["from attention"])' in text
    assert '["MatMul"]' in module_mermaid(before, before, "encoder.layer.0.output")
    assert "this module does not exist here" in module_mermaid(before, after, "nothing.here")


def test_a_module_that_is_too_large_has_a_note() -> None:
    size = MAX_ELEMENTS + 1
    names = tuple(f"n{at}" for at in range(size))
    flat = Wiring(("",), names, ("Relu",) * size, (0,) * size, (), {}, {})
    assert drawn(flat) == (f'flowchart TD\n  n0["(model): {size} boxes, too many for one drawing"]\n')

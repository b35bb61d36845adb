"""Names are escaped and numbers are rounded correctly."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.reporting import formatting

ANY_TEXT = st.text(st.characters())  # surrogates and controls included


@given(ANY_TEXT)
def test_visible_text_is_printable_and_keeps_what_was_printable(text: str) -> None:
    visible = formatting.visible(text)
    assert visible.isprintable()
    assert formatting.visible(visible) == visible
    if text.isprintable():
        assert visible == text


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_printable_and_keeps_its_content(content: object) -> None:
    document = formatting.printable_json(msgspec.json.encode(content))
    assert document.isprintable()
    assert msgspec.json.decode(document) == content


def test_json_shows_control_and_direction_characters_as_escapes() -> None:
    for char in "\x7f\x9b\u200e\u2028\u202e\u2066\U000e0041":
        assert char not in formatting.printable_json(msgspec.json.encode({"a": char}))
    assert formatting.printable_json(b'{"a":"\xc3\xa4"}') == '{"a":"ä"}'


@given(ANY_TEXT, st.integers(8, 80))
def test_a_name_is_never_longer_than_the_limit(text: str, longest: int) -> None:
    shortened = formatting.name(text, longest)
    assert len(shortened) <= longest
    assert shortened[:3] == formatting.visible(text)[:3]


@given(st.integers(-(10**14), 10**14))
def test_a_size_is_rounded_to_the_nearest_digit(octets: int) -> None:
    number, unit = formatting.size(octets).replace("−", "-").split(" ")
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert abs(float(number)) < 1000
    step = 0.5 if "." not in number else 0.05
    assert abs(float(number) * scale - octets) <= step * scale * 1.0001


def test_wording() -> None:
    assert formatting.from_to("17.4 MB", "17.4 MB") == "17.4 → 17.4 MB"
    assert formatting.from_to("17.4 MB", "900 kB") == "17.4 MB → 900 kB"
    assert formatting.from_to("324", "187") == "324 → 187"
    assert formatting.percent(1000, 998) == "−0.2 %"
    assert formatting.percent(100, 150) == "+50 %"
    assert formatting.percent(0, 5) == "±0 %"
    assert formatting.change(-1234) == "−1,234"
    assert (formatting.plural(1, "pass", "passes"), formatting.plural(2, "pass", "passes")) == ("1 pass", "2 passes")
    assert formatting.difference(0.0) == "0"
    assert (formatting.seconds(0.0123), formatting.seconds(1.25), formatting.seconds(300.4)) == (
        "12 ms",
        "1.2 s",
        "300 s",
    )

"""Hostile names that a model file may contain: each is more than text in some format.

A name that is executed sets `hacked`, requests a file, or opens a dialog; the browser tests look for all three.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import Enum
from typing import TypeVar, cast

import msgspec
from hypothesis import strategies as st

VECTORS: dict[str, str] = {
    "script": "<script>window.hacked=1</script>",
    "image": '"><img src=x onerror="window.hacked=2">',
    "closed script": "</script><script>window.hacked=3</script>",
    "comment": "<!-- <script>window.hacked=4</script>",
    "comment end": "--><script>window.hacked=5</script>",
    "cdata": "<![CDATA[ <script>window.hacked=6</script> ]]>",
    "cdata end": "]]><script>window.hacked=7</script>",
    "address": "javascript:window.hacked=8",
    "handler": "' onmouseover='window.hacked=9' autofocus onfocus='window.hacked=10",
    "handler, double": '" onmouseover="window.hacked=11" autofocus onfocus="window.hacked=12',
    "entity": "&lt;script&gt;window.hacked=13&lt;/script&gt;",
    "template": "{{7*7}}{% raw %}",
    "literal": "${window.hacked=14}`+window.hacked+`",
    "svg": "<svg onload=window.hacked=15>",
    "closed style": "</style><script>window.hacked=16</script>",
    "closed title": "</title><script>window.hacked=17</script>",
    "closed text": "</text></svg><script>window.hacked=18</script>",
    "encoded": "%3Cscript%3Ewindow.hacked=19%3C/script%3E%",
    "prototype": "__proto__",
    "constructor": "constructor",
    "method": "toString",
    "frame": "<iframe srcdoc='<script>parent.hacked=20</script>'>",
    "base": "<base href=//evil.invalid/><link rel=stylesheet href=//evil.invalid/x.css>",
    "refresh": '<meta http-equiv="refresh" content="0;url=//evil.invalid/">',
    "style": 'x" style="background:url(//evil.invalid/y)',
    "json": '"}]},"models":[]}</script><!--',
    "link": "#module=%00&rewrite=-1&model=99",
    "markdown": "](javascript:window.hacked=21) `x` <b onclick=window.hacked=22> | *a* [l](//evil.invalid)",
    "mermaid": '"]; click A "javascript:window.hacked=23"; B["',
    "line separator": "a\u2028window.hacked=24\u2029b",
    "right to left": "\u202egnp.live\u202c\u2066x",
    "terminal": "\x1b[31mred\x1b]0;title\x07",
    "controls": "a\x01\x08\x0b\x7f\x85b",
    "lines": "two\nlines\r\n\tand a tab",
    "emoji": "🧪\U0001f468\u200d\U0001f469 e\u0301 漢字",
    "long": "long." + "x" * 3000,
    "slashes": "../../../../etc/passwd\\..\\..",
    "quotes": "'\"`\\",
}

NAMES = st.text(max_size=200) | st.sampled_from([*VECTORS.values(), "a\x00b", "=1+1", "a|b"])  # for properties
_T = TypeVar("_T")
# Fields that hold one of several known words and never text from a model file.
_KEPT_FIELDS = frozenset(
    {"status", "options", "chosen", "finding", "choice", "does", "schema_version", "clock", "where"}
)
_KEPT_WORDS = frozenset({"source", "untuned", "tuned"})  # the models of a tuning


def poisoned(value: _T, worsen: Callable[[str], str] | None = None) -> _T:
    """The record with every text that could come from a file replaced by a hostile one; equal texts stay equal."""
    return cast("_T", _poisoned(value, worsen or bad))


def _poisoned(value: object, worsen: Callable[[str], str]) -> object:
    if isinstance(value, str) and not isinstance(value, Enum):
        return worsen(value) if value and value not in _KEPT_WORDS else value
    if names := _fields(value):
        own = {name: getattr(value, name) for name in names}
        return type(value)(**{name: v if name in _KEPT_FIELDS else _poisoned(v, worsen) for name, v in own.items()})
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_poisoned(key, worsen): _poisoned(each, worsen) for key, each in items}
    if isinstance(value, tuple):
        return tuple(_poisoned(each, worsen) for each in cast("tuple[object, ...]", value))
    return value


def _fields(value: object) -> tuple[str, ...]:
    """The fields of a record, or of a struct that holds records."""
    return value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()


def bad(text: str) -> str:
    """The text with one of the vectors before it, always the same vector for the same text."""
    vectors = list(VECTORS.values())
    return vectors[zlib.crc32(text.encode()) % len(vectors)] + text

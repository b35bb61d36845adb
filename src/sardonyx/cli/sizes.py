"""Sizes of open dims as users write them: "seq=128", and "seq=16,128,512" for several."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sardonyx.errors import UsageError

_FORM = re.compile(r"(?P<dim>.+?)\s*=\s*(?P<sizes>[1-9]\d{0,17}(?:\s*,\s*[1-9]\d{0,17})*)\s*,?", re.ASCII)


def read_sizes(texts: Iterable[str]) -> dict[str, int]:
    """One size a dim, as --size gives them."""
    found: dict[str, int] = {}
    for text in texts:
        dim, sizes = _read(text, "write DIM=N, for example --size batch=8")
        if len(sizes) != 1:
            raise UsageError(
                f"'{text}' is several sizes", hint=f"--sweep {dim}={','.join(map(str, sizes))} tries them all"
            )
        found[dim] = sizes[0]
    return found


def read_sweeps(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Several sizes a dim, as --sweep gives them."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        dim, sizes = _read(text, "write DIM=N,N,…, for example --sweep seq=16,128,512")
        found[dim] = found.get(dim, ()) + sizes
    return found


def _read(text: str, hint: str) -> tuple[str, tuple[int, ...]]:
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not a size", hint=hint)
    return found["dim"], tuple(int(each) for each in found["sizes"].split(","))

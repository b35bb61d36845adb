"""Read the modules of nodes from their scoped names, as exporters write them.

Torch writes `/encoder/layer.0/MatMul`; tf2onnx, jax2tf and Keras write `model/dense/MatMul`, and several names joined
by semicolons for a node that replaces several. A slash alone says nothing: ONNX Runtime names a node that it fused
`MatMul_0/MatMulAddFusion`. So names without a leading slash count only if most nodes of the file have a scope.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from sardonyx.provenance.codec import ROOT, Origins, read_scoped_name

_NUMBER = re.compile(r"_\d+$")
_LEAST = 0.5  # share of the names that have a scope


def _common(first: Sequence[str], last: Sequence[str]) -> Sequence[str]:
    """Return what two lists begin with."""
    unlike = (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(unlike, min(len(first), len(last)))]


class ScopedNames:
    """The modules that the names of a file tell; none if they tell no module besides the model itself."""

    def __init__(self, names: Collection[str], operators: Collection[str]) -> None:
        """Read the names of all nodes without constants; `operators` are those of ONNX."""
        self._operators, self._names = frozenset(operators), frozenset(names)
        self._root: Sequence[str] | None = None
        slashed = any(name.startswith("/") for name in names)
        if not slashed:
            scoped = [scopes for name in names if (scopes := self._scopes(name))]
            if len(scoped) > _LEAST * len(names):
                self._root = _common(min(scoped), max(scoped))
        told = {path for name in names for path in self._read(name) or ()}
        self._tells = bool(told - {ROOT})

    def origins(self, name: str) -> Origins | None:
        """Return the module that a name tells, or None."""
        return self._read(name) if self._tells else None

    def _read(self, name: str) -> Origins | None:
        if self._root is None:
            return read_scoped_name(name)
        scopes = self._scopes(name)
        return frozenset({".".join(scopes[len(self._root) :])}) if scopes else None

    def _scopes(self, name: str) -> list[str]:
        """Return the scopes of a name without a leading slash; the first of several names is that of the result."""
        first = name.partition(";")[0]
        scopes = first.split("/")[:-1]
        while scopes and "/".join(scopes) in self._names:  # a node, not a module
            scopes.pop()
        is_fused = len(scopes) == 1 and _NUMBER.sub("", scopes[0]) in self._operators
        return [] if is_fused or not all(scopes) else scopes

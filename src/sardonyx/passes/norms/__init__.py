"""Normalisations and activations spelled out in arithmetic become the operators that mean them."""

from __future__ import annotations

from sardonyx.passes.base import Pass

NORMS: tuple[Pass, ...] = ()

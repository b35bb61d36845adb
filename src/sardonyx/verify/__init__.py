"""The proof that two models are the same function."""

from __future__ import annotations

from sardonyx.verify.compare import Oracle, verify

__all__ = ["Oracle", "verify"]

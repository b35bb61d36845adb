"""The proof that two models are the same function."""

from __future__ import annotations

from sardonyx.verification.compare import Oracle, seeds_from, verify

__all__ = ["Oracle", "seeds_from", "verify"]

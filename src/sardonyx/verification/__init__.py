"""Verification that two models compute the same function: both are run on the same inputs and compared."""

from __future__ import annotations

from sardonyx.verification.compare import Oracle, seeds_from, verify

__all__ = ["Oracle", "seeds_from", "verify"]

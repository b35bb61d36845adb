"""Rewrites attention into one call: planning, writing, and merging of projections."""

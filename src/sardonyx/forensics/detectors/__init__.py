"""Finders of patterns that optimizers look for: small, pure, and looser than any pass.

A pass must be sure, a detector only tells where to look: what it finds and no pass takes up is an opportunity.
"""

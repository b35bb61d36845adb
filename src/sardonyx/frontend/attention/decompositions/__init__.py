"""Decompositions of torch's attentions into primitive operations with roles."""

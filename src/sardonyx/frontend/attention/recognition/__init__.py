"""Attention found in a graph by its structure, however it is spelled."""

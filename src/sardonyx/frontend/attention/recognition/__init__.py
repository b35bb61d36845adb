"""Recognizes attention in a graph by its structure."""

"""Builds a module from a hub, a config, a model catalogue or a function, with its weights."""

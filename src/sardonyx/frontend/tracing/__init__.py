"""Exports a module as a graph whose nodes name their modules, and runs the module as reference for verification."""

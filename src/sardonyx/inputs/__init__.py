"""Inputs for any model: sizes that it accepts, and values by the role of each input."""

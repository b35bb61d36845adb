"""Inputs for any model: sizes that it accepts, and values by the role of each input.

`generator.Inputs` plans and generates trials for a comparison; `at_size` generates inputs for a run at chosen sizes.
"""

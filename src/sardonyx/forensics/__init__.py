"""What a model and a run tell about each other: what could be done, what was, and why the rest was not."""

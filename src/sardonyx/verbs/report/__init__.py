"""`sardonyx report`: `command.py` has its options, `model_page.py` the page of a model file."""

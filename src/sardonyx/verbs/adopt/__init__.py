"""`sardonyx adopt`: `command.py` has its options; everything else here is used by it alone."""

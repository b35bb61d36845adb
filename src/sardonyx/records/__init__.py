"""Records: the results of commands as frozen plain data with a JSON format."""

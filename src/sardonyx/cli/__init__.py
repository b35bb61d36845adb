"""The command line: parse, call a public verb, render, answer with an exit code."""

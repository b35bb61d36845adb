"""The command line: parse options, call a public function, print its record, return an exit code."""

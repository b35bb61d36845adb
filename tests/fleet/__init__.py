"""A package, so that its modules are found although benchmarks/ has a script of the same name."""

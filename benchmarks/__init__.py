"""Benchmarks: one module per package, run by `make bench`."""

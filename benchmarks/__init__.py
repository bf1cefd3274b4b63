"""Benchmarks: each is a program of its own; `make bench` runs the one side by side, `make lab` the
papers' experiments."""

"""Policies: pure functions from statistics to suggestions."""

"""Benchmarks: each is a program of its own; `make bench` runs the one side by side, `make lab` the
papers' experiments."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""

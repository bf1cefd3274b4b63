"""Disks that are slow, by what the newest epoch has measured."""

from __future__ import annotations

from collections.abc import Mapping

SLOW_S = 2.0
"""So long nothing takes that an epoch writes alone and for itself: a commit, which is a file and a
log entry of some kilobytes; a slot's manifest."""
SLOW_COMMITS_S = 5.0
"""The same of all commits of an epoch, one after another."""


def slow_disks(write_s: Mapping[str, float]) -> str:
    """Which disks are slow, in words; empty: none. `write_s`: of `Tally`."""
    parts = []
    if (took_s := write_s.get("tables", 0.0)) > SLOW_COMMITS_S:
        parts.append(f"the tables' (warehouse.root) took {took_s:.1f} s for an epoch's commits")
    if (took_s := write_s.get("state", 0.0)) > SLOW_S:
        parts.append(f"the state's (state.root) took {took_s:.1f} s for a manifest")
    return f"slow: {', '.join(parts)}" if parts else ""

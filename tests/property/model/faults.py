"""How often things go wrong. Each is a probability per chance (an actor's step, or a tick)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random


@dataclass(frozen=True)
class Faults:
    """Rates of faults; `scaled` makes a calmer or wilder world."""

    driver_killed: float = 0.015
    driver_frozen: float = 0.015
    second_driver: float = 0.006
    task_killed: float = 0.02
    task_hangs: float = 0.02
    task_misplaced: float = 0.04
    extract_misplaced: float = 0.1
    """Where a host does not answer while groups are taken out of its state, and then does."""
    job_fails: float = 0.02
    executors_waited_for: float = 0.3
    """Of reports with a missing slot: the driver waits for executors and tries again first."""
    host_lost: float = 0.004
    second_host_lost: float = 0.15
    """Of attempts that restore lost slots: another host goes meanwhile."""
    host_lost_midway: float = 0.01
    """Of the steps' turns, where joins lie below the root: some have read what those gave."""
    power_lost: float = 0.003
    topic_refilled: float = 0.0003
    """What was read of a partition is replaced by as many other rows."""
    retention: float = 0.0003
    """Kafka no longer holds a partition's first rows, perhaps some that nobody has read."""
    outcome_unknown: float = 0.02
    cleanup_killed: float = 0.03
    second_cleanup: float = 0.3
    vacuum: float = 0.012
    compaction: float = 0.006
    dropping: float = 0.006
    partition_added: float = 0.002
    adapts: float = 0.04
    """Not a fault: groups move, split and merge, slots come and go, spills are forced."""
    seal_odd: float = 0.02
    """A command that is stale, repeated, or names a session that is not open."""
    seal_withdrawn: float = 0.03
    """The last seal is taken back, at whatever moment."""

    def scaled(self, factor: float) -> Faults:
        """All rates multiplied (at most 0.5)."""
        return Faults(**{f.name: min(0.5, getattr(self, f.name) * factor) for f in fields(self)})


CALM = Faults(**{f.name: 0.0 for f in fields(Faults)})
"""Nothing goes wrong."""


def drawn(rng: Random) -> Faults:
    """The rates of one schedule: some worlds are calm, some hardly work at all."""
    return Faults().scaled(rng.choice((0.0, 0.3, 1.0, 1.0, 1.0, 2.0)))

"""Whether anybody obeys the commands of a warehouse."""

from __future__ import annotations

from spillway.processes import process_runs
from spillway.readmodel import cache
from spillway.tables import Warehouse


def waits_for_a_stream(warehouse: Warehouse) -> bool:
    """Whether a command waits, and the process that claimed the journal last has ended. One of
    another host cannot be seen, and counts as running. Raises `NothingYet`."""
    model = cache.caught_up(warehouse, cache.load(warehouse.place.path()))
    if process_runs(model.tally.process) is not False:
        return False
    return any(True for _ in warehouse.commands.unseen(model.state))

"""Looks at one warehouse, again and again: its status, with lag and losses where Kafka answers."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from spillway.allocators import uncollected
from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.model import ReadModel
from spillway.readmodel.waiting import open_loss
from spillway.report.ends import HeldOffsets, held_offsets
from spillway.report.model import Status
from spillway.report.status import status, topics_of
from spillway.tables import Warehouse, opened
from spillway_schemas.settings import Settings

ENDS_EVERY_S = 5.0
"""How often a broker that did not answer is asked again."""


class Looker:
    """Looks at one warehouse again and again; opens it once it is there."""

    warehouse: Warehouse | None
    """The one that was looked at; None before the first look."""
    memory: ReadCache | None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.warehouse = None
        self.memory = None
        self._silent_until = 0.0

    def look(self, detail_session: str | None = None, *, newest: int | None = None) -> Status:
        """The status now, with the arguments of `status`.

        Raises `NoWarehouse` and `NothingYet` while there is nothing.
        """
        if self.warehouse is None or self.memory is None:
            # A reader writes nothing, so there is nothing to sync.
            self.warehouse = opened(self._settings.warehouse, fsync=False)
            self.memory = cache.load(self.warehouse.place.path())
        now = datetime.now(UTC)
        with uncollected():
            found = status(
                self.warehouse,
                self._settings,
                now,
                None,
                memory=self.memory,
                detail_session=detail_session,
                newest=newest,
            )
        held, model = None, self.memory.model
        if model is not None and time.monotonic() >= self._silent_until:
            names = [topic.topic for topic in found.topics]
            held = held_offsets(self._settings, names, model.state.genesis.cluster_id)
            if held is None:
                self._silent_until = time.monotonic() + ENDS_EVERY_S
        if held is None or model is None:
            return found
        return with_kafka(found, self.warehouse, model, held)


def with_kafka(found: Status, warehouse: Warehouse, model: ReadModel, held: HeldOffsets) -> Status:
    """The same status with the lag behind what Kafka holds, and what it holds no more."""
    topics, lag_rows = topics_of(model, held.ends)
    told = any("accept-loss" in each.kinds for each in found.waiting)
    commands = warehouse.commands.unseen(model.state) if told else ()
    loss = open_loss(model.state, commands, held.beginning)
    return found.model_copy(update={"topics": topics, "lag_rows": lag_rows, "loss": loss})

"""Looks at one warehouse, again and again: its status, with the lag where the broker answers."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from spillway.allocators import uncollected
from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.model import ReadModel
from spillway.report.ends import kafka_ends
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
        ends = None
        if time.monotonic() >= self._silent_until:
            ends = kafka_ends(self._settings, [topic.topic for topic in found.topics])
            if ends is None:
                self._silent_until = time.monotonic() + ENDS_EVERY_S
        model = self.memory.model
        return found if ends is None or model is None else with_lag(found, model, ends)


def with_lag(found: Status, model: ReadModel, ends: dict[str, list[int]]) -> Status:
    """The same status with the lag behind these ends."""
    topics, lag_rows = topics_of(model, ends)
    return found.model_copy(update={"topics": topics, "lag_rows": lag_rows})

"""How far the time of a query with windows has come: what people and metrics are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from spillway.readmodel.model import ReadModel
from spillway_schemas.windows import BEGINNING_US


@dataclass(frozen=True)
class EventTimeFigures:
    """Of the open session."""

    watermark_us: int | None
    """In us since 1970; None: a partition is waited for that has had no row."""
    ahead_s: dict[str, float]
    """Per topic, how much its newest row is ahead of the watermark; only topics that had a row."""
    idle: dict[str, list[int]]
    """Per topic the partitions that are not waited for."""
    unheard: dict[str, list[int]]
    """Per topic the partitions that are waited for and have had no row: they hold the watermark."""

    @property
    def idle_counts(self) -> dict[str, int]:
        """How many partitions of each topic are idle."""
        return {topic: len(partitions) for topic, partitions in self.idle.items()}


def event_time_of(model: ReadModel) -> EventTimeFigures | None:
    """None: the query has no window."""
    state = model.state
    rules, progress = state.genesis.event_time, state.session.progress
    if rules is None or progress is None:
        return None
    mark = None if progress.watermark_us == BEGINNING_US else progress.watermark_us
    idle = progress.idle(state.recent_input_ms, rules.idle_after_ms)
    newest: dict[str, int] = {}
    quiet: dict[str, list[int]] = {}
    unheard: dict[str, list[int]] = {}
    for (topic, partition), heard in sorted(progress.heard.items()):
        if (topic, partition) in idle:
            quiet.setdefault(topic, []).append(partition)
        elif heard.greatest_us is None:
            unheard.setdefault(topic, []).append(partition)
        if heard.greatest_us is not None:
            newest[topic] = max(newest.get(topic, heard.greatest_us), heard.greatest_us)
    ahead = {} if mark is None else {topic: (us - mark) / 1e6 for topic, us in newest.items()}
    return EventTimeFigures(mark, ahead, quiet, unheard)

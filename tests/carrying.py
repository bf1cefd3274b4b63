"""A journal of two sessions, the first of which carries rows over to the second."""

from __future__ import annotations

from spillway.protocol.state import JournalState, replay, with_times
from spillway_schemas.journal import Claim, Epoch, EventTime, Genesis, Offsets
from tests.protocol_entries import NEXT, claim, count, ends, epoch, genesis, seal, sealed


class Carrying:
    """Two sessions on both sides of a seal that is accepted in epoch 5, and fulfilled in epoch 6.
    Times go on by 100 us an epoch, and rows are kept for 100 us behind the watermark."""

    def __init__(self) -> None:
        rules = EventTime(lateness_us=0, ahead_us=10**9, topics=["a", "b"], kept_us=100)
        self.entries: list[Genesis | Claim | Epoch] = [
            genesis(event_time=rules, carry=True),
            claim(1, 1),
        ]
        for n in range(5):
            at = 4 * (n + 1)
            self.epoch(ends(at, at, at))
        # Of a/0 rows of the next session are read before the last ones of a/1.
        self.epoch(ends(24, 22, 24), seal=seal(ends(22, 24, 24)))

    @property
    def state(self) -> JournalState:
        found = replay(self.entries)
        assert found is not None
        return found

    @property
    def history(self) -> list[Epoch]:
        return [each for each in self.entries if isinstance(each, Epoch)]

    def epoch(self, end: Offsets, **more: object) -> None:
        state = self.state
        n = state.epoch + 1
        read = [
            count(topic, partition, rows, digest=n).model_copy(update={"greatest_us": 100 * n})
            for topic, partition in (("a", 0), ("a", 1), ("b", 0))
            if (rows := end[topic][partition] - state.end[topic][partition])
        ]
        self.entries.append(with_times(state, epoch(n + 2, n, end, read=read, **more)))

    def seals(self, **more: object) -> None:
        self.epoch(ends(24, 24, 24), sealed=sealed(ends(22, 24, 24), 6), session=NEXT, **more)

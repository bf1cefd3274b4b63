"""A day of a query with windows, for tests: rows in disorder, some of them late, and a brute-force
join that knows from the journal where each epoch ended, and nothing else."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.day import VALUE, Day, accepted, message

BEGIN = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
WINDOW, LATENESS = timedelta(seconds=40), timedelta(seconds=20)


def timed_messages(
    seed: int, rows: int, keys: int, *, begin_s: float = 0.0
) -> list[tuple[str, bytes]]:
    """`rows` (stream, value) pairs, 20 a second of their own time: a tenth up to 15 s out of order,
    a few minutes late, a few malformed."""
    rng = random.Random(seed)
    made = []
    for number in range(rows):
        stream = rng.choice(tuple(VALUE))
        at = begin_s + number / 20
        if rng.random() < 0.1:
            at -= rng.uniform(0, 15)
        elif rng.random() < 0.02:
            at -= rng.uniform(60, 600)
        ts = (BEGIN + timedelta(seconds=at)).isoformat()
        body = {**message(stream, f"S{rng.randrange(keys)}", number), "ts": ts}
        value = json.dumps(body).encode()
        made.append((stream, value if rng.random() > 0.01 else value[:-2]))
    return made


@dataclass
class WindowedDay(Day):
    """A day of `stock`, `volume` and `review` on their symbol, within `WINDOW`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        query = self.folder / "query.toml"
        text = query.read_text().replace("\ntopic", '\ntime = "ts"\ntopic')
        text += f'window = "{WINDOW.seconds} seconds"\nlateness = "{LATENESS.seconds} s"\n'
        text += 'idle_after = "1 hour"\n'
        query.write_text(text)

    def expected(self, session: str) -> tuple[Counter[tuple[Any, ...]], set[tuple[str, int, int]]]:
        """The results of a session, and the coordinates (stream, partition, offset) of its late
        rows.

        The watermark is made from all rows of the topics: the session must be the only one, or
        sessions carry rows over. Its results are those of which a row is the session's.
        """
        rows = {
            (stream, partition, offset): body
            for stream, found in self.read_topics().items()
            for partition, offset, value in found
            if (body := accepted(stream, value)) is not None
        }
        begin, end = (self.sealed(session)[name] for name in ("start", "end"))
        names = {topic: stream for stream, topic in self.topics.items()}
        greatest: dict[tuple[str, int], datetime] = {}
        watermark = datetime.min.replace(tzinfo=UTC)
        read = Counter[tuple[str, int]]()
        late = set()
        joined: dict[str, list[list[tuple[Any, ...]]]] = defaultdict(lambda: [[] for _ in VALUE])
        for epoch in self.journal.epochs():
            came = []
            for topic, ends in epoch["end"].items():
                for partition, until in enumerate(ends):
                    place = (names[topic], partition)
                    came += [(*place, offset) for offset in range(read[place], until)]
                    read[place] = max(until, read[place])
            for stream, partition, offset in came:
                if (body := rows.get((stream, partition, offset))) is None:
                    continue
                at = datetime.fromisoformat(body["ts"])
                topic = self.topics[stream]
                mine = begin[topic][partition] <= offset < end[topic][partition]
                greatest[stream, partition] = max(greatest.get((stream, partition), at), at)
                if at < watermark:
                    late |= {(stream, partition, offset)} if mine else set()
                    continue
                if offset >= end[topic][partition]:
                    continue
                row = (at, mine, partition, offset, body[VALUE[stream]])
                joined[body["symbol"]][list(VALUE).index(stream)].append(row)
            if len(greatest) == len(self.topics) * self.partitions:
                watermark = max(watermark, min(greatest.values()) - LATENESS)
        results = Counter(
            (key, *(row[2:] for row in combination))
            for key, (firsts, *others) in joined.items()
            for first in firsts
            # Most combinations of three days are too far apart: those are not made at all.
            for combination in itertools.product(
                [first], *([r for r in rows if abs(r[0] - first[0]) <= WINDOW] for rows in others)
            )
            if max(row[0] for row in combination) - min(row[0] for row in combination) <= WINDOW
            and any(row[1] for row in combination)
        )
        return results, late

    def check(self, session: str) -> Counter[str]:
        """As `Day.check`, with windows; and the quarantine holds just the late rows."""
        expected, late = self.expected(session)
        got: Counter[tuple[Any, ...]] = Counter()
        phases: Counter[str] = Counter()
        for row in self.results(session):
            parts = tuple(
                (row[f"{s}_partition"], row[f"{s}_offset"], row[f"{s}_{VALUE[s]}"])
                for s in self.topics
            )
            got[(row["symbol"], *parts)] += 1
            phases[row["phase"]] += 1
        missing, surplus = expected - got, got - expected
        assert not missing, f"{missing.total()} missing, e.g. {next(iter(missing))}"
        assert not surplus, f"{surplus.total()} too many, e.g. {next(iter(surplus))}"
        names = {topic: stream for stream, topic in self.topics.items()}
        told = {
            (names[row["topic"]], row["partition"], row["offset"])
            for row in self.quarantined()
            if row["session_date"] == session and "late by" in row["reason"]
        }
        assert told == late
        phases["late"] = len(late)
        return phases

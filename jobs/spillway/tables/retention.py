"""Retention: which days are over for good, and which files hold rows of such days only. Pure.

A session is *proved* when it is cleaned and its last verdict since then says complete, or that its
input is lost and somebody has accepted that: it needs nothing more. Its
spilled rows and its statistics are dropped when it was cleaned so many days ago. No other
session's are, however old: not an open one's, not that of a day that waits for its cleanup or
its proof, not that of a day that was found wanting.

Why nobody misses them:

* cleanup needs spilled rows of sessions that are not cleaned; for others it does nothing;
* `verify` reads topics, journal, `results` and `quarantine`, never `spill`: it can be repeated;
* a driver that redoes the journal goes by a table's last application transaction, which a removal
  keeps. A power loss takes the end of a log: never an epoch without the removal after it;
* recovery is about open sessions, and reads Kafka;
* a policy needs statistics of open sessions; the report leaves out, of a day that has none, what
  each spill chose from.

The journal is kept for ever: it says which input a day had and what became of it. Its entries may
leave the table for the archive (`archivable`): `doctor`, a repeated `verify`, and a fold of all
entries where no snapshot is left, read them there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile

from spillway.tables.events import SessionEvent
from spillway.tables.log import ActiveFile
from spillway_schemas.journal import Sealed


def proved(events: Iterable[SessionEvent]) -> dict[str, datetime]:
    """When each session was cleaned that has been proved complete since, or as good as that can be.

    `events`: the `sessions` table, in order.
    """
    cleaned: dict[str, datetime] = {}
    complete: dict[str, bool] = {}
    for event in events:
        if event.event == "cleaned":
            cleaned.setdefault(event.session, datetime.fromisoformat(event.written_at))
        elif event.event == "verified" and event.session in cleaned:
            complete[event.session] = event.settles
    return {session: at for session, at in cleaned.items() if complete.get(session)}


def expired(events: Iterable[SessionEvent], now_s: float, keep_days: int) -> frozenset[str]:
    """Sessions that are proved, and were cleaned `keep_days` ago or earlier."""
    last = datetime.fromtimestamp(now_s, UTC) - timedelta(days=keep_days)
    return frozenset(session for session, at in proved(events).items() if at <= last)


def archivable(sealed: Iterable[Sealed], gone: Collection[str], settled: int) -> list[Sealed]:
    """Sessions whose journal entries may leave the table, in the order of their seals.

    They are the first of all, so that what stays is the end of the journal. Each is in `gone`, and
    so is the next one: its first rows may have been read before this one was sealed. So none is
    the last. Nor has one an epoch after `settled`, up to which all tables have what the journal
    names: a driver may redo it.
    """
    in_order = sorted(sealed, key=lambda each: each.epoch)
    pairs = takewhile(
        lambda pair: {pair[0].session, pair[1].session} <= set(gone) and pair[0].epoch <= settled,
        pairwise(in_order),
    )
    return [each for each, _ in pairs]


def droppable(
    files: Iterable[ActiveFile], gone: Collection[str], known: Sequence[str]
) -> list[ActiveFile]:
    """Files all of whose rows are of sessions in `gone`. `known`: every session that has ended.

    A file of several sessions (two are open for a moment when one ends) counts when all that lie
    between its first and its last are in `gone`.
    """

    def whole(first: str, last: str) -> bool:
        return {first, last, *(each for each in known if first < each < last)} <= set(gone)

    return [file for file in files if file.sessions is not None and whole(*file.sessions)]

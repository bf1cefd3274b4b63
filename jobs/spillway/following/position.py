"""Which rows of `results` a follower has, and which ones it takes next. Pure.

Model: a row is told by what it says, not by the file or the table version that holds it. Rows of
run time have an epoch; an epoch appears whole, in one commit, and epochs appear in their order.
Rows of cleanup belong to a session, and all of them are there once `sessions` says `cleaned`; those
of a correction, once it says `corrected`. So two numbers say what a follower has: the *epoch* up to
which it has run time, and the *event* of `sessions` up to which it has cleanups and corrections. A
`FollowStep` is a range of epochs, a session's cleanup, or one correction.

What follows from it:

* Compaction, vacuum, checkpoints and a pruned log change no row, so they mean nothing to a
  position, and a position never grows too old. A version of the table would: the log reaches back
  some minutes on a busy day, and after a repair its numbers are given again.
* Within a step no order is needed: whoever takes it takes all of it together with the new position,
  or nothing. A step that is too large for that is cut into parts by a hash of each row's
  coordinates, so that a row is in the same part whatever file it is read from.

Failure paths:

* *Killed before the position was kept*: the step is taken again, from whatever files hold it now.
* *Another history* (the warehouse was restored from a backup, and epochs were given again): a
  position remembers one row, and what `sessions` said of the cleanups and corrections that it has,
  or is in the middle of. `another_history` compares.

Known limitations: the weight of a range of epochs inside one compacted file is estimated, as if
rows came evenly. A step may hold more rows than `STEP_ROWS`, though never more than its files. Of
rows of run time a follower that has none yet, or none of the parts that it has of an epoch, knows
of no history.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from spillway.tables import ActiveFile, SessionEvent

STEP_ROWS, STEP_BYTES = 1_000_000, 256 * 2**20
"""What a step holds at most: rows, and bytes of the files that hold them."""

Phase = Literal["run-time", "cleanup", "correction"]
EVENTS: dict[str, Phase] = {"cleaned": "cleanup", "corrected": "correction"}
"""Events of `sessions` after which all rows of a phase are there. `run-time` goes by epochs."""

SAID = ("ranges", "spilled_rows", "revision", "digest", "results")
"""Of an event's details, what tells its rows from those of another history. When it was written
does not: after a repair of the log the same cleanup may be noted again."""


class Newest(NamedTuple):
    """A row of run time that a follower has, of the last epoch of which it has any."""

    epoch: int
    committed_us: int
    """Its `committed_at`, in us since 1970. Of the same epoch in another history it is another."""


class UnderWay(BaseModel):
    """A step of which a follower has some parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Phase
    upto: NonNegativeInt
    parts: PositiveInt
    done: PositiveInt
    session: str = ""
    """Of cleanup and corrections. Empty in positions that version 0.1.0 has kept."""
    revision: int = 0
    """Of a correction."""
    history: str = ""
    """As of the position's event."""


class Position(BaseModel):
    """Which rows a follower has. Kept together with them, or not at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epoch: int = -1
    """All rows of run time up to this epoch."""
    event: int = -1
    """All rows of cleanups and corrections that ended with this event of `sessions` or before."""
    session: str = ""
    """The session of that event."""
    history: str = ""
    """`EndedPhase.history` of that event. Empty in positions of versions that did not keep it."""
    newest: Newest | None = None
    under_way: UnderWay | None = None


@dataclass(frozen=True)
class EndedPhase:
    """A cleanup of a session, or one of its corrections: all of its rows are there."""

    event: int
    """Its number in `sessions`."""
    session: str
    rows: int | None
    """How many there are; None: not known."""
    phase: Phase = "cleanup"
    revision: int = 0
    """Of a correction."""
    history: str = ""
    """A digest of what `sessions` said of it, and of all phases that had ended before."""


@dataclass(frozen=True)
class Seen:
    """The table at one moment."""

    epoch: int
    """The last epoch whose rows are there; -1: none."""
    files: Sequence[ActiveFile]
    ended: Sequence[EndedPhase]
    """In the order of their events: each session's cleanup once, and each of its corrections."""


@dataclass(frozen=True)
class FollowStep:
    """Rows that are taken together: of `files` those of `phase` after epoch `after` up to `upto`;
    of cleanup those of `session`, whatever their epoch; of these the ones of part `part`."""

    phase: Phase
    upto: int
    """The last epoch; of cleanup the event's number."""
    files: tuple[ActiveFile, ...]
    after: int = -1
    session: str = ""
    history: str = ""
    revision: int = 0
    """Of a correction: its rows are those with a row of the revision, and none of a later one."""
    part: int = 0
    parts: int = 1


def ended_phases(events: Iterable[SessionEvent]) -> list[EndedPhase]:
    """The cleanups and corrections that have ended.

    `events`: all of the table `sessions`, in order. Two cleanups of one session at once may both
    say that it is cleaned; the first one counts.
    """
    found: dict[tuple[str, int], EndedPhase] = {}
    history = ""
    for n, event in enumerate(events):
        if (phase := EVENTS.get(event.event)) is not None:
            revision, rows = 0, event.cleanup
            if phase == "correction":
                revision, rows = event.details["revision"], event.details["results"]
            if (event.session, revision) not in found:
                history = _history(history, event)
                ended = EndedPhase(n, event.session, rows, phase, revision, history)
                found[event.session, revision] = ended
    return list(found.values())


def _history(before: str, event: SessionEvent) -> str:
    counts = event.run_time, event.cleanup, event.generations
    details = [event.details.get(name) for name in SAID]
    said = json.dumps([before, event.session, event.event, *counts, *details])
    return hashlib.sha256(said.encode()).hexdigest()


def now(seen: Seen) -> Position:
    """The position of a follower that wants what comes from now on."""
    position = Position(epoch=seen.epoch)
    if seen.ended:
        last = seen.ended[-1]
        of = {"event": last.event, "session": last.session, "history": last.history}
        position = position.model_copy(update=of)
    return position


def next_step(
    position: Position,
    seen: Seen,
    *,
    most_rows: int = STEP_ROWS,
    most_bytes: int = STEP_BYTES,
) -> FollowStep | None:
    """What is taken next of what was seen; None: nothing.

    Run time comes first, so that a session's cleanup is never ahead of its day. Files come about
    in the order of their epochs, though nothing rests on that.
    """
    under_way = position.under_way
    if under_way is not None:
        whole = _whole(position, seen, under_way.phase, under_way.upto)
        return replace(whole, part=under_way.done, parts=under_way.parts)

    def weight(files: Iterable[ActiveFile]) -> float:
        return sum(max(file.rows / most_rows, file.bytes / most_bytes) for file in files)

    new = _files_after(position, seen)
    if new and seen.epoch > position.epoch:
        ends = sorted({min(_greatest(file, seen.epoch), seen.epoch) for file in new})
        weights = zip(ends, _weights(new, ends, weight), strict=True)
        fits = [end for end, heavy in weights if heavy <= 1]
        if len(fits) == len(ends):
            return _whole(position, seen, "run-time", seen.epoch)
        if fits:
            return _whole(position, seen, "run-time", fits[-1])
        # Not even the first file: a part of its epochs, or of its one epoch a part of the rows.
        heavy = weight(file for file in new if _least(file) <= ends[0])
        first = max(position.epoch + 1, min(map(_least, new)))
        upto = first - 1 + max(1, int((ends[0] - first + 1) / heavy))
        parts = math.ceil(heavy) if upto == first else 1
        return replace(_whole(position, seen, "run-time", upto), parts=parts)
    waiting = next((each for each in seen.ended if each.event > position.event), None)
    if waiting is None:
        return None
    step = _whole(position, seen, waiting.phase, waiting.event)
    rows = sum(file.rows for file in step.files)
    share = 1.0 if waiting.rows is None else min(1.0, waiting.rows / max(rows, 1))
    return replace(step, parts=max(1, math.ceil(weight(step.files) * share)))


def _weights(
    files: Sequence[ActiveFile], ends: Sequence[int], weight: Callable[[list[ActiveFile]], float]
) -> Iterator[float]:
    """What the files weigh that may hold rows up to each of `ends`, which ascend."""
    begun = sorted(files, key=_least)
    at, heavy = 0, 0.0
    for end in ends:
        before = at
        while at < len(begun) and _least(begun[at]) <= end:
            at += 1
        heavy += weight(begun[before:at])
        yield heavy


def _whole(position: Position, seen: Seen, phase: Phase, upto: int) -> FollowStep:
    if phase == "run-time":
        new = sorted(_files_after(position, seen), key=_least)
        files = [file for file in new if _least(file) <= upto]
        return FollowStep(phase, upto, tuple(files), after=position.epoch)
    [of] = [each for each in seen.ended if each.event == upto]
    files = [
        file
        for file in seen.files
        if file.sessions is None or file.sessions[0] <= of.session <= file.sessions[1]
    ]
    return FollowStep(
        phase,
        upto,
        tuple(files),
        session=of.session,
        revision=of.revision,
        history=of.history,
    )


def taken(position: Position, step: FollowStep, newest: Newest | None) -> Position:
    """The position after a step. `newest`: of the rows that were taken so far; None: none."""
    update: dict[str, object] = {"newest": newest, "under_way": None}
    if step.part + 1 < step.parts:
        update["under_way"] = UnderWay(
            phase=step.phase,
            upto=step.upto,
            parts=step.parts,
            done=step.part + 1,
            session=step.session,
            revision=step.revision,
            history=step.history,
        )
    elif step.phase == "run-time":
        update["epoch"] = step.upto
    else:
        update |= {"event": step.upto, "session": step.session, "history": step.history}
    return position.model_copy(update=update)


def another_history(position: Position, seen: Seen, agrees: bool) -> str | None:
    """Why this table is not the one that the position is of; None: it is.

    `agrees`: whether the row that `position.newest` describes is the table's newest of run time up
    to `position.epoch`, where a follower has any.
    """
    half = position.under_way
    epoch = position.epoch
    if half is not None and half.phase == "run-time":
        epoch = half.upto
    if seen.epoch < epoch:
        return (
            f"its results end at epoch {seen.epoch}, and epoch {epoch} was taken before "
            "(where `spillway doctor --repair` has mended its log, start the stream first: it "
            "gives the table what is lacking)"
        )
    if not agrees:
        assert position.newest is not None
        return (
            f"from epoch {position.newest.epoch} on it has other rows than those that were taken "
            "before"
        )
    ended = {each.event: each for each in seen.ended}
    last = ended.get(position.event)
    if position.event >= 0 and (last is None or last.session != position.session):
        return (
            f"event {position.event} of sessions is not the end of a cleanup or correction of "
            f"{position.session}, whose rows were taken before"
        )
    if last is not None and position.history not in ("", last.history):
        return _otherwise(last)
    if half is not None and half.phase != "run-time":
        of = ended.get(half.upto)
        told = (half.phase, half.session, half.revision)
        if of is None or told not in ((of.phase, of.session, of.revision), (of.phase, "", 0)):
            return (
                f"event {half.upto} of sessions is not the end of the {half.phase} of "
                f"{half.session or 'a session'} of which some rows were taken before"
            )
        if half.history not in ("", of.history):
            return _otherwise(of)
    return None


def _otherwise(ended: EndedPhase) -> str:
    return (
        f"up to event {ended.event} sessions has other cleanups and corrections than those that "
        "were taken before"
    )


def _files_after(position: Position, seen: Seen) -> list[ActiveFile]:
    """Files that may hold rows of epochs after the position."""
    return [file for file in seen.files if _greatest(file, seen.epoch) > position.epoch]


def _least(file: ActiveFile) -> int:
    return 0 if file.least is None else int(file.least)


def _greatest(file: ActiveFile, last: int) -> int:
    return last if file.greatest is None else int(file.greatest)

"""What must hold when a schedule has come to its end: the brute-force join, and the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spillway.protocol.losses import loss_of
from spillway.protocol.state import JournalState, fold, genesis_of, replay
from spillway_schemas.journal import Epoch, Genesis, Offsets, Sealed, entry_from, entry_texts
from spillway_schemas.losses import LostRange

from .rules import at
from .slot import whole
from .world import REJECTED, DeferredRow, Identity, Row, World


def problems(world: World) -> list[str]:
    """Everything that is wrong, in words; empty when the schedule was exact."""
    state = replay(world.journal)
    assert state is not None
    out = list(lost_files(world))
    got = results(world)
    for sealed in state.sealed.values():
        found = got.pop(sealed.session, Counter())
        most, least_ = brute(world, sealed), left(world, state, sealed)
        out += compared(sealed.session, found, most & (found | least_))
        out += accepted(world, state, sealed)
    for session, found in got.items():
        open_one = Counter(so_far(world, state, session))
        extra = found - open_one
        if extra:
            out.append(f"{session} (open): {total(extra)} results that cannot be: {few(extra)}")
    out += records(world, state)
    out += budgets(world)
    out += answers(world)
    out += quarantined(world, state)
    return out


def wrong(world: World) -> list[str]:
    """What is wrong when a stream has ended in the middle of its work: nothing that it wrote."""
    state = replay(world.journal)
    assert state is not None
    out = list(lost_files(world))
    for session, found in results(world).items():
        sealed = state.sealed.get(session)
        known = brute(world, sealed) if sealed else Counter(so_far(world, state, session))
        if extra := found - known:
            out.append(f"{session} (cut off): {total(extra)} results that cannot be: {few(extra)}")
    return out


def answers(world: World) -> Iterable[str]:
    """Commands that were answered more than once, or passed over by the mark of those answered."""
    told: Counter[str] = Counter()
    for entry in world.journal:
        if isinstance(entry, Epoch):
            told.update(outcome.id for outcome in entry.commands)
            for command in world.commands[: entry.commands_n + 1]:
                if command.id not in told:
                    yield f"command {command.id} was passed over in epoch {entry.epoch}"
    for id_, times in told.items():
        if times > 1:
            yield f"command {id_} was answered {times} times"


def lost_files(world: World) -> Iterable[str]:
    """Files that a table names and nobody has."""
    for name, table in world.tables.items():
        for path in table.files():
            if path not in world.store:
                yield f"{name} names {path}, which is gone"


def contents(world: World, name: str) -> Iterable[tuple[str, int, object]]:
    """All rows of a table; a file that was added twice counts twice."""
    for path, times in world.tables[name].files().items():
        if path in world.store:
            for _ in range(times):
                yield from world.store[path].rows


def results(world: World) -> dict[str, Counter[Identity]]:
    """The results table: how often each result is there, per session."""
    out: dict[str, Counter[Identity]] = {}
    for session, _, identity in contents(world, "results"):
        out.setdefault(session, Counter())[identity] += 1  # type: ignore[index]
    return out


def rows_between(world: World, start: Offsets, end: Offsets) -> list[Row]:
    """All good rows of a range of offsets, but those that the stream passed over."""
    passed = never_read(world)
    return [
        world.row(leaf, value, p, o)
        for leaf, p, o, value in world.read(start, end)
        if value != REJECTED and (leaf, p, o) not in passed
    ]


def never_read(world: World) -> set[tuple[int, int, int]]:
    """(Leaf, partition, offset) of all that was lost, and accepted as lost, before it was read."""
    passed: set[tuple[int, int, int]] = set()
    end: Offsets = {}
    for entry in world.journal:
        if isinstance(entry, Genesis):
            end = entry.start
        elif isinstance(entry, Epoch):
            if entry.lost_to:
                passed |= {(i, p, o) for i, p, o, _ in world.read(end, entry.lost_to)}
            end = entry.end
    return passed


def brute(world: World, sealed: Sealed) -> Counter[Identity]:
    """The join of a sealed session's input."""
    return Counter(whole(world, rows_between(world, sealed.start, sealed.end)))


def left(world: World, state: JournalState, sealed: Sealed) -> Counter[Identity]:
    """The results that a session must have, whatever was lost: those of rows that are not. Where no
    slot was lost all rows that were read stayed in memory or in files, and nothing is missing."""
    lost = losses(world, state, sealed)
    epochs = [entry for entry in world.journal if isinstance(entry, Epoch)]
    if not lost or not any(each.restored_slots or each.deferred for each in epochs):
        return brute(world, sealed)
    gone = {(each.topic, each.partition): each.end for each in lost}
    rows = [
        row
        for row in rows_between(world, sealed.start, sealed.end)
        if row[2][0][1] >= gone.get((world.topic(world.tree.inputs[row[0]][1]), row[2][0][0]), 0)
    ]
    return Counter(whole(world, rows))


def losses(world: World, state: JournalState, sealed: Sealed) -> list[LostRange]:
    """What a session says that it has lost."""
    loss = loss_of(genesis_of(state, sealed), sealed, world.journal)
    return [*(loss.ranges if loss else ()), *world.accepted.get(sealed.session, ())]


def accepted(world: World, state: JournalState, sealed: Sealed) -> Iterable[str]:
    """What a session says that it has lost, and Kafka holds; and what it does not say."""
    lost = losses(world, state, sealed)
    for each in lost:
        if each.end > world.beginning()[each.topic][each.partition]:
            yield f"{sealed.session} has lost {each}, says the journal; Kafka holds it"
    passed = never_read(world)
    for i, p, o, _ in world.read(sealed.start, sealed.end):
        told = any(
            (each.topic, each.partition) == (world.topic(i), p) and each.begin <= o < each.end
            for each in lost
        )
        if (i, p, o) in passed and not told:
            yield f"{sealed.session} does not say that it has lost {world.topic(i)}/{p} offset {o}"


def so_far(world: World, state: JournalState, session: str) -> list[Identity]:
    """The join of what the journal says an open session has read."""
    for index, mine in enumerate(state.sessions):
        if mine.date == session:
            end = state.end
            if index + 1 < len(state.sessions):
                after = state.sessions[index + 1].start
                end = {
                    t: [min(e, at(after, t, p)) for p, e in enumerate(ends)]
                    for t, ends in state.end.items()
                }
            return whole(world, rows_between(world, mine.start, end))
    return []


def compared(session: str, got: Counter[Identity], expected: Counter[Identity]) -> list[str]:
    """Missing and doubled results of a session."""
    out = []
    if lacking := expected - got:
        out.append(f"{session}: MISSING {total(lacking)} of {total(expected)}: {few(lacking)}")
    if extra := got - expected:
        out.append(f"{session}: DOUBLED {total(extra)} of {total(expected)}: {few(extra)}")
    return out


def total(found: Counter[Identity]) -> int:
    """How many results."""
    return sum(found.values())


def few(found: Counter[Identity]) -> str:
    """Some of them, for people."""
    return ", ".join(map(str, sorted(found)[:3]))


def records(world: World, state: JournalState) -> list[str]:
    """The journal's own figures against the tables, and the chain of sessions."""
    out = []
    first = world.journal[0]
    assert isinstance(first, Genesis)
    start = first.start
    seals = {sealed.session: sealed.epoch for sealed in state.sealed.values()}
    written = Counter(
        (session, n)
        for session, n, row in contents(world, "spill")
        if not isinstance(row, DeferredRow)
    )
    spilled: Counter[str] = Counter()
    for (session, generation), rows in (written + dropped(world)).items():
        if session not in seals or generation <= seals[session]:  # not cleanup's
            spilled[session] += rows
    at_run_time: Counter[str] = Counter()
    for entry in world.journal:
        if isinstance(entry, Epoch):
            at_run_time.update(entry.results)
        if entry_from(*entry_texts(entry)) != entry:
            out.append(f"entry {entry.n} does not survive JSON")
    for sealed in state.sealed.values():
        if any(
            at(start, t, p) != o for t, ends in sealed.start.items() for p, o in enumerate(ends)
        ):
            out.append(f"{sealed.session} starts at {sealed.start}, not at {start}")
        if sealed.spilled_rows != spilled[sealed.session]:
            out.append(
                f"{sealed.session} says {sealed.spilled_rows} rows spilled, there are {spilled}"
            )
        if sealed.results != at_run_time[sealed.session]:
            out.append(f"{sealed.session} says {sealed.results} results, entries {at_run_time}")
        start = sealed.end
    return out


def budgets(world: World) -> list[str]:
    """What commands have set and the driver that obeyed them has journaled, by brute force."""
    wanted = {command.id: command for command in world.commands}
    set_: dict[int, int] = {}
    out = []
    state: JournalState | None = None
    for entry in world.journal:
        if isinstance(entry, Epoch):
            for outcome in entry.commands:
                command = wanted.get(outcome.id)
                if (
                    command
                    and outcome.obeyed
                    and command.kind == "budget"
                    and command.slot is not None
                ):
                    set_[command.slot] = command.bytes
            set_ = {slot: n for slot, n in set_.items() if n and slot in entry.manifests}
        elif entry.kind == "claim":
            set_ = {}
        state = fold(state, entry)
        if dict(state.budgets) != set_:
            out.append(f"entry {entry.n} has the budgets {state.budgets}, should have {set_}")
    return out


def dropped(world: World) -> Counter[tuple[str, int]]:
    """Rows per session and generation of files that commits without new ones took from `spill`."""
    gone: Counter[tuple[str, int]] = Counter()
    for commit in world.tables["spill"].log:
        if not commit.added:
            for path in commit.removed:
                gone += world.dropped[path]
    return gone


def quarantined(world: World, state: JournalState) -> list[str]:
    """Every rejected value that was read is in quarantine, once."""
    first = world.journal[0]
    assert isinstance(first, Genesis)
    got = Counter(row for _, _, row in contents(world, "quarantine"))
    passed = never_read(world)
    expected = Counter(
        (i, p, o)
        for i, p, o, value in world.read(first.start, state.end)
        if value == REJECTED and (i, p, o) not in passed
    )
    return [] if got == expected else [f"quarantine has {got}, should have {expected}"]

"""The joins below the root, one level of them in one slot's part of an epoch.

Model: a probe is a function of (task, blocks, the files that the task's manifest names) that writes
nothing. It joins the new rows of the level's joins with what the slot holds of them, and gives what
comes out as blocks of new rows for the slots that own them in the parents. The rows themselves are
kept by the step of the same slot, after the last level, which gets the same blocks: so all of an
epoch's decisions about memory are taken in one place, and a probe may run any number of times.

Failure path: where state is not as it was named, nothing is given, and every probe and step above
is told so (`missing`). A probe passes on what it is told, a step reports it. Telling the step of
the same slot alone is not enough: when a host is lost while steps run, Spark runs its probes again
for the steps that have not read yet, and that one may be done. Nor is telling or passing on alone:
a step may have read the old blocks of level 1 and the repeated ones of level 2, or the other way
round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from spillway.engine.intake import NOT_GIVEN, Intake, take_in
from spillway.engine.join.batches import Joined
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import join_batches
from spillway.engine.join.tree import Hash, TreeSpec
from spillway.engine.relocation import adopt
from spillway.engine.replay import replayed
from spillway.engine.state.arrangement import SessionState
from spillway.engine.state.loading import Loaded, load
from spillway.engine.state.runs import Missing, row_bytes
from spillway.engine.statistics import Given
from spillway.engine.task import StepTask
from spillway.engine.tracing import counted_for
from spillway.engine.wire.blocks import (
    GIVEN_SCHEMA,
    Block,
    encode_missing,
    encode_table,
    rows_by_slot,
)
from spillway.storage import Folder


def probe(
    spec: TreeSpec,
    task: StepTask,
    level: int,
    blocks: Iterable[Block],
    state: Folder,
    *,
    hash_: Hash = xxhash64,
) -> Iterator[Block]:
    """Blocks of what the slot's joins of a level give, and how much that was; and of what they gave
    of old, where it was lost.

    `blocks`: those of the slot that are for these joins (`PROBED` kinds). Raises what `step` does.
    """
    joins = spec.at_level(level)
    try:
        found = load(spec, state, task.slot, task.epoch - 1, task.manifest, task.key, joins)
    except Missing as lost:
        yield from _missing(spec, task, level, {task.slot: str(lost)})
        return
    intake = take_in(spec, task.groups, task.slot, blocks, task.piece_bytes)
    lacking = intake.lacking(task.arriving, joins)
    # Pass on the slots but not the reasons: the probe that looked has already sent those to
    # everyone.
    if unfound := dict.fromkeys(intake.unfound, "") | dict.fromkeys(lacking, NOT_GIVEN):
        yield from _missing(spec, task, level, unfound)
        return
    yield from replayed(
        spec, task.groups, task.replays, level, intake.replayed, task.batch_bytes, hash_
    )
    install(spec, task, state, found, intake)
    for name, session in found.sessions.items():
        for join in joins:
            yield from _joined(spec, task, join, name, session, hash_)


def install(spec: TreeSpec, task: StepTask, state: Folder, found: Loaded, intake: Intake) -> None:
    """Add what came in an epoch to a slot's state, without what leaves it."""
    for (sender, _), moved in sorted(intake.moved.items()):
        adopt(spec, task, state, found, sender, moved.files)
    for name in sorted(intake.sessions()):
        session = found.session(name)
        session.new = intake.new.get(name, session.new)
        session.installed = intake.installed.get(name, session.installed)
        session.carried = intake.carried.get(name, session.carried)
    for session in found.sessions.values():
        session.drops = session.drops.drop(task.leaving, task.epoch)


def joined_batches(
    spec: TreeSpec,
    join: int,
    session: SessionState,
    batch_bytes: int,
    *,
    sample_every: int,
) -> Iterator[Joined] | None:
    """What an epoch gives at a join: carried rows with old ones, then new rows with all; None:
    neither came.

    Combinations of carried rows alone are results of the session before.
    """
    inputs = spec.inputs_of(join)
    old, new = session.old(inputs), [session.new[i] for i in inputs]
    carried = [session.carried[i] for i in inputs]
    if not any(new) and not any(carried):
        return None
    joined = partial(
        join_batches,
        spec.joins[join],
        batch_bytes=batch_bytes,
        sample_every=sample_every,
        last_drop=session.drops.last,
    )
    every = [[*one, *other] for one, other in zip(old, carried, strict=True)]
    return chain(joined(old, carried, need_old=True), joined(every, new))


def _joined(
    spec: TreeSpec, task: StepTask, join: int, name: str, session: SessionState, hash_: Hash
) -> Iterator[Block]:
    up = spec.upward[join]
    assert up is not None, "a probe is of joins below the root"
    inputs = spec.inputs_of(join)
    if any(session.carried[i] for i in inputs):
        carried = [session.carried[i] for i in inputs]
        for batch in join_batches(
            spec.joins[join],
            [[] for _ in inputs],
            carried,
            batch_bytes=task.batch_bytes,
            sample_every=1,
        ):
            rows = spec.rows_up(join, batch, hash_)
            yield from rows_by_slot(spec, up.input, task.groups, rows, session=name, kind="carry")
    batches = joined_batches(spec, join, session, task.batch_bytes, sample_every=1)
    if batches is None:
        return
    given = Given.nothing(len(task.groups))
    below = spec.inputs[up.input].lineage
    for number, batch in enumerate(batches):
        np.add.at(given.results, task.groups.group_of(batch.hashes), batch.results)
        rows = spec.rows_up(join, batch, hash_)
        yield from rows_by_slot(spec, up.input, task.groups, rows, session=name, kind="new")
        if task.traces and len(rows.key_hash):
            given.downstream_bytes += counted_for(
                task.groups,
                rows.table,
                below,
                most=task.trace_most,
                seed=task.sample_seed(join, name, number),
                weights=row_bytes(rows),
            )
    yield from _given(task, join, name, given)


def _given(task: StepTask, join: int, session: str, given: Given) -> Iterator[Block]:
    """What a join gave, told to each slot for its own groups."""
    counts = (given.results > 0) | (given.downstream_bytes > 0)
    for slot in np.unique(task.groups.slots[counts]).tolist():
        mine = np.flatnonzero(counts & (task.groups.slots == slot))
        told = pa.table(
            [
                pa.repeat(session, len(mine)),
                pa.array(mine),
                pa.array(given.results[mine]),
                pa.array(given.downstream_bytes[mine]),
            ],
            schema=GIVEN_SCHEMA,
        )
        yield Block(slot, "given", join, 0, encode_table(told))


def _missing(
    spec: TreeSpec, task: StepTask, level: int, unfound: Mapping[int, str]
) -> Iterator[Block]:
    """Slots without which nothing is given here, told to every probe and step above.

    One small block per receiver and level: when a host is lost, every slot sends these to every
    other.
    """
    told = encode_missing(unfound)
    for slot in sorted({task.slot, *task.groups.slots.tolist()}):
        for above in range(level + 1, spec.height + 1):
            yield Block(slot, "missing", spec.at_level(above)[0], 0, told)

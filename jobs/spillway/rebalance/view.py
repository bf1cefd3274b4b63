"""What the controller knows: the journal's sums of slots, the newest `statistics` of groups."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from spillway.policy.flux import collection_s
from spillway.policy.sampling import Sample
from spillway.policy.view import I64, View
from spillway.readmodel.groups import GroupStates, cut_groups
from spillway.readmodel.model import ReadModel


def view_of(
    model: ReadModel,
    groups: GroupStates,
    *,
    collection_s: float,
    trigger_s: float,
    close_ms: int | None,
    now_ms: int,
    swing: float = 1.0,
) -> View:
    """What a policy sees.

    Args:
        model: what follows from the journal.
        groups: `group_states`.
        collection_s: the collection (and sampling, and reorganisation) time: the last so many
            seconds of epochs.
        trigger_s: the time between the beginnings of two epochs, as it is set.
        close_ms: when the session closes, on the stream's clock; None: not known, as now.
        swing: see `View`.
        now_ms: the present, ms since 1970: while no rows come there are no epochs to tell it by.
    """
    session = model.tally.sessions[model.session]
    last = model.sample(collection_s)
    slots = len(last.results)
    prefixes = tuple(group for group, _ in model.state.groups)
    memory = sum(slot.state_bytes for slot in model.tally.slots.values())
    seen_ms = session.last_input_ms
    owner = np.array([slot for _, slot in model.state.groups], dtype=np.int64)
    held = [model.tally.slots[slot] for slot in range(slots)]
    return View(
        groups=prefixes,
        slot=owner,
        bytes=_scaled(groups.bytes, owner, np.array([slot.state_bytes for slot in held])),
        results=groups.results,
        processed=_within(groups, last.span_s),
        spilled=cut_groups(model),
        budget=np.array([max(slot.budget_bytes, 1) for slot in held], dtype=np.int64),
        idle_s=last.idle_s,
        sampled=_given(model, groups, owner, last),
        occupancy=last.occupancy(trigger_s),
        collection_s=last.span_s,
        since_move_s=_since_s(model.tally.adaptations.moved_at, now_ms),
        since_forced_s=_since_s(model.tally.adaptations.forced_at, now_ms),
        since_tuned_s=_since_s(model.tally.adaptations.tuned_at, now_ms),
        session_bytes=memory + session.spilled_bytes - session.returned_bytes,
        elapsed_s=(seen_ms - session.first_input_ms) / 1000,
        left_s=max(0.0, (close_ms - seen_ms) / 1000) if close_ms and seen_ms else 0.0,
        forced_bytes=session.forced_bytes,
        cores=model.state.cores,
        seed=model.state.epoch,
        rate=groups.rate,
        loss=groups.expected_loss,
        hot_share=groups.hot_share,
        hot_key=groups.hot_key,
        spilled_bytes=groups.spilled_bytes,
        came=groups.came,
        parents=tuple(model.state.genesis.parents),
        joins=tuple(model.state.genesis.joins),
        swing=swing,
    )


def _given(model: ReadModel, groups: GroupStates, owner: I64, sample: Sample) -> I64:
    """(s,) results of the slots in the time of the sample.

    The journal has the query's results. In a tree only groups of the root give those, and a slot
    with few of them would seem to give little; there they are what all its groups gave to the next
    join or as results, by the groups' rates.
    """
    if len(model.state.genesis.parents) == 1:
        return sample.results
    rate = np.bincount(owner, weights=groups.rate, minlength=len(sample.results))
    given: I64 = np.rint(rate * sample.span_s).astype(np.int64)
    return given


def _within(groups: GroupStates, span_s: float) -> I64:
    """Rows that came to each group in so many seconds, (g,), where it is known in how many those
    came that were counted."""
    seconds = groups.processed_s
    scale = np.divide(span_s, seconds, out=np.ones(len(seconds)), where=seconds > 0)
    rows: I64 = np.rint(groups.processed * scale).astype(np.int64)
    return rows


def _scaled(sizes: I64, owner: I64, held: I64) -> I64:
    """Sizes of groups (g,) that add up to what each slot holds now, (s,).

    Statistics are some seconds old; the journal is not. What came since is shared out by size.
    """
    known = np.bincount(owner, weights=sizes, minlength=len(held))
    scale = np.divide(held, known, out=np.zeros(len(held)), where=known > 0)
    scaled: I64 = np.rint(sizes * scale[owner]).astype(np.int64)
    return scaled


def round_s(model: ReadModel, initial_s: float, delta_min_s: float, now_ms: int) -> float:
    """The collection time of Flux's rounds: see `spillway.policy.flux.collection_s`."""
    adapted = model.tally.adaptations
    if adapted.moved_at is not None:
        since_s = _since_s(adapted.moved_at, now_ms)
        return collection_s(initial_s, adapted.moved_s, since_s, delta_min_s)
    began = model.tally.sessions[model.session].began_at
    since_s = now_ms / 1000 - _seconds(began) if began else 0.0
    return collection_s(initial_s, None, since_s, delta_min_s)


def _since_s(text: str | None, now_ms: int) -> float:
    return float("inf") if text is None else now_ms / 1000 - _seconds(text)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

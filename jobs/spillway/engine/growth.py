"""How a session's groups have grown: from a step's figures to what the policy asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np
import numpy.typing as npt

from spillway.engine.groups import I64, Bool, GroupMap
from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.kept import KeptGenerations
from spillway.engine.statistics import Counters, rates
from spillway.policy.expected import Gain, Growth, expected_gain
from spillway.policy.forecast import Forecast
from spillway.policy.reactivation import may_ever
from spillway_schemas.hash_space import join_numbers
from spillway_schemas.journal import KEPT_GENERATIONS
from spillway_schemas.windows import slice_us

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GroupJoins:
    """Of which join each group is, and what policies ask of that; all (g,)."""

    join: I64
    """Its number."""
    level: I64
    """How many joins lie above it; 0 at the root."""
    inputs: I64
    window_ms: F64
    """How long a row waits for others; infinite: to the session's end."""
    slice_ms: F64
    """How long a slice of rows is, which leave memory together; 0 where there is no window."""
    root: int
    """Number of the root."""

    @classmethod
    def of(cls, spec: TreeSpec, groups: GroupMap) -> GroupJoins:
        """Of an assignment's groups."""
        join = join_numbers(groups.prefixes, len(spec.joins))
        spans = [each.span for each in spec.joins]
        window_ms = [inf if s is None else max(0, *s.horizons_us) / 1000 for s in spans]
        inputs = [len(each.inputs) for each in spec.joins]
        level = np.array(spec.distances, dtype=np.int64)[join]
        slice_ms = [0.0 if s is None else slice_us(s) / 1000 for s in spans]
        of_join = np.array(window_ms)[join], np.array(slice_ms)[join]
        return cls(join, level, np.array(inputs, np.int64)[join], *of_join, spec.root.operator)


def growth_of(
    rows: I64,
    counters: Counters,
    joins: GroupJoins,
    own: I64,
    now_ms: int,
    evidence: F64,
    left_ms: float | None,
    lag_ms: float,
    forecast: Forecast | None = None,
) -> Growth:
    """How a slot's groups of a session have grown.

    `rows`: in memory, int64 (g,). `own`: indices of the slot's groups, (k,). `left_ms`: until the
    session ends; None: not known, then it is as long as it has been. `lag_ms`: how far the
    watermark is behind the stream's clock. `forecast`: what a session before says of all groups, of
    a session whose end is known.
    """
    first_ms, rows_in = counters.first_ms[own], counters.rows_in[own]
    present, usual = rates(rows_in, counters.recent_rows[own], first_ms, now_ms)
    if left_ms is None:
        left_ms = float(now_ms - first_ms[first_ms > 0].min(initial=now_ms))
    return Growth(
        rows=rows[own],
        present=present,
        usual=usual,
        exposure_norm=counters.exposure_norm[own],
        session_results=counters.session_results[own],
        join=joins.join[own],
        root=joins.root,
        inputs=joins.inputs[own],
        window_ms=joins.window_ms[own],
        kept_ms=joins.window_ms[own] + joins.slice_ms[own] + lag_ms,
        left_ms=left_ms,
        evidence=evidence,
        came=rows_in,
        # Of other slots' groups it would count in the trust and the level of these.
        forecast=None if forecast is None else forecast.of(own),
    )


def of_all(values: F64, own: I64, groups: int) -> F64:
    """Figures of a slot's groups (k,) among all groups, (g,): 0 of those that are another's."""
    found: F64 = np.zeros(groups)
    found[own] = values
    return found


def gains_of(
    growth: Growth, kept: KeptGenerations, own: I64, groups: int, now_ms: int
) -> Sequence[Gain]:
    """What the generations of a slot's groups bring among all `groups`, (g,), newest first: each
    once those after it are back. `growth`: of the slot's own, (k,).

    Nothing where those after it will not all come back, or it will be forgotten as they do (see
    `spillway.policy.reactivation`).
    """
    found: list[Gain] = []
    held = growth.rows
    waits: Bool = np.ones(len(own), dtype=np.bool_)
    for before in range(KEPT_GENERATIONS):
        each = kept.newest(groups, before)
        back = each.rows[own] * waits
        if not back.any():
            break
        gain = expected_gain(growth, held, back, now_ms - each.at_ms[own])
        waits &= may_ever(each.bytes[own], gain.at_once)
        gain = Gain(gain.results * waits, gain.at_once, gain.stays)
        found.append(Gain(*(of_all(getattr(gain, f.name), own, groups) for f in fields(gain))))
        waits &= gain.stays > 1 - 1e-9  # all of it, but for rounding
        held = held + back
    return found

"""An estimate for people, and for programs."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log10
from typing import Any

from rich.console import Group
from rich.table import Table

from spillway.clock import rfc3339
from spillway.engine.hotkeys import key_text
from spillway.estimate.reading import SessionEstimate
from spillway.estimate.scaling import Estimate
from spillway.report.words import clock_text, count_text, or_text, part_text, visible


def as_json(found: SessionEstimate) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "results": _numbers(found.results),
        "leaves": [
            {
                "name": leaf.name,
                "topic": leaf.topic,
                "offsets": leaf.offsets,
                "fraction": leaf.fraction,
                "rows": leaf.rows,
                "sampled": {
                    "kept": leaf.kept,
                    "rejected": leaf.rejected,
                    "filtered": leaf.filtered,
                },
                "reason": leaf.reason or None,
            }
            for leaf in found.leaves
        ],
        "keys": [
            {"key": key_text(each.key), "results": _numbers(each.results)} for each in found.keys
        ],
        "optional": list(found.optional),
        "gap_offsets": found.gap_offsets,
        "from": None if found.first_ms is None else rfc3339(found.first_ms),
        "to": None if found.last_ms is None else rfc3339(found.last_ms),
    }


def as_tables(found: SessionEstimate) -> Group:
    """The inputs, the results, and the keys that give most of them."""
    inputs = _table("input", "offsets", "read", "rows", "rejected")
    for leaf in found.leaves:
        inputs.add_row(
            leaf.name,
            count_text(leaf.offsets),
            _part(leaf.fraction),
            _about(leaf.rows, exact=leaf.fraction == 1),
            _part(leaf.rejected / leaf.sampled) if leaf.sampled else "–",
        )
    keys = _table("key", "results", "range")
    keys.columns[0].header = f"key ({', '.join(found.names)})"
    for each in found.keys:
        keys.add_row(visible(key_text(each.key)), _value(each.results), _range(each.results))
    lines = [_verdict(found.results), *_doubts(found)]
    return Group(inputs, "", *lines, "", keys) if found.keys else Group(inputs, "", *lines)


def _part(part: float) -> str:
    """A share in two digits; nothing less than all is shown as 100 %, nothing more than none as
    0 %."""
    if part in (0, 1):
        return part_text(part)
    return f"{100 * min(part, 0.99):.2g} %" if part >= 1e-6 else "< 0.0001 %"


def _verdict(results: Estimate) -> str:
    if results.is_exact:
        return f"Results: {_value(results)}. Everything was read, so this is exact."
    if not results.value:
        # Rows of a key that lie side by side are missed together.
        return (
            "Results: the sampled rows have none with each other, so they say little of how many "
            f"there are: up to {_about(results.high, to=ceil)} or so, and more where a key's rows "
            "come one after the other."
        )
    # A burst that no block has hit is in no sample.
    right = f"short bursts aside, 19 of 20 samples are right with {_range(results)}."
    return f"Results: {_value(results)}; {right}"


def _doubts(found: SessionEstimate) -> list[str]:
    said = [
        f"Of {visible(leaf.name)}, {_part(leaf.rejected / leaf.sampled)} of the sampled rows "
        f"break their contract; the commonest reason: {visible(leaf.reason)}"
        for leaf in found.leaves
        if leaf.reason
    ]
    if found.optional:
        said.append(
            f"Results that lack a row of {or_text(found.optional)} come on top, after the "
            "close: which keys have none, a sample cannot say."
        )
    if found.first_ms is not None and found.last_ms is not None:
        first, last = (clock_text(rfc3339(each)) for each in (found.first_ms, found.last_ms))
        said.append(f"By rows of {first} to {last} (Kafka's times).")
    if found.results.is_rough:
        said.append(
            "This is a rough guess: few results have all of their rows in the sample. "
            "Read more with --rows."
        )
    if not found.allows_for_unmet and not found.results.is_exact:
        said.append(
            "Within a window, and of a tree whose joins have different keys, the range does not "
            "allow for a key that one input is full of and that the sample of another does not "
            "have."
        )
    if found.gap_offsets:
        said.append(
            "A key may be missing whose rows all lie within "
            f"{_about(found.gap_offsets, to=ceil)} offsets of a partition."
        )
    return said


def _table(*titles: str) -> Table:
    found = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, title in enumerate(titles):
        found.add_column(title, justify="right" if at else "left", overflow="fold")
    return found


def _value(found: Estimate) -> str:
    return _about(found.value, exact=found.is_exact)


def _range(found: Estimate) -> str:
    if found.is_exact:
        return "exact"
    return f"{_about(found.low, to=floor)} to {_about(found.high, to=ceil)}"


def _about(number: float, *, exact: bool = False, to: Callable[[float], int] = round) -> str:
    """`about` a number by its first two digits; an exact one whole. `to`: the whole number that is
    taken; an end of a range is not rounded inwards."""
    unit = 1 if exact or number < 100 else 10 ** (floor(log10(number)) - 1)
    return count_text(to(number / unit) * unit)


def _numbers(found: Estimate) -> dict[str, float | bool]:
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "exact": found.is_exact,
    }

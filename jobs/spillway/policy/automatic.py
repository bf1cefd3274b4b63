"""What `automatic` stands for in the settings of a spill."""

from __future__ import annotations

from typing import Literal

from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.victims import DEFAULT_VICTIMS

LARGE_SPILL = 0.3
"""TR-05-04's own."""
SMALL_SPILL = 0.05


def victims_for(wanted: str, joins: int) -> str:
    """The victims' policy of a query with so many joins: what `automatic` stands for.

    In a tree rows come to the upper joins ever faster, which the forecast of `expected-loss` does
    not know: on the laboratory's trees it gives less than `local-output`.
    """
    if wanted != "automatic":
        return wanted
    return DEFAULT_VICTIMS if joins == 1 else "local-output"


def fraction_for(wanted: float | Literal["automatic"], reactivation: str) -> float:
    """The part of its state that a spill takes: what `automatic` stands for.

    Where what was spilled comes back, a large spill leaves room for it, and groups are cut into few
    generations; where it does not, what leaves before it must is lost until the close.
    """
    if wanted != "automatic":
        return wanted
    return SMALL_SPILL if reactivation == "off" else LARGE_SPILL


def forecast_for(wanted: str, reactivation: str) -> str:
    """By what groups are expected to get rows: what `automatic` stands for.

    A group that is given up before its hour has come is lost until the close. Where it comes back
    once it is busy, to know the hour gains nothing.
    """
    if wanted != "automatic":
        return wanted
    return "day-before" if reactivation == "off" else "off"


def reactivation_for(wanted: str, victims: str) -> str:
    """The policy by which spilled generations come back: what `automatic` stands for.

    What it weighs is what groups are expected to give; where groups leave by another measure, what
    comes back might leave at once.
    """
    if wanted != "automatic":
        return wanted
    return DEFAULT_REACTIVATION if victims == DEFAULT_VICTIMS else "off"

"""What `automatic` stands for in `spill.victims` and `spill.reactivation`."""

from __future__ import annotations

from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.victims import DEFAULT_VICTIMS


def victims_for(wanted: str, joins: int) -> str:
    """The victims' policy of a query with so many joins: what `automatic` stands for.

    In a tree rows come to the upper joins ever faster, which the forecast of `expected-loss` does
    not know: on the laboratory's trees it gives less than `local-output`.
    """
    if wanted != "automatic":
        return wanted
    return DEFAULT_VICTIMS if joins == 1 else "local-output"


def reactivation_for(wanted: str, victims: str) -> str:
    """The policy by which spilled generations come back: what `automatic` stands for.

    What it weighs is what groups are expected to give; where groups leave by another measure, what
    comes back might leave at once.
    """
    if wanted != "automatic":
        return wanted
    return DEFAULT_REACTIVATION if victims == DEFAULT_VICTIMS else "off"

"""When a day may be closed: not before the grace after its close is over.

The scheduler has a delay of its own between the close and the run that seals (`close_delay_s` under
`[spillway]` in Airflow's configuration), which spillway's settings do not know: it is passed to
`spillway doctor` and `spillway seal`.
"""

from __future__ import annotations

from spillway_schemas.exits import USAGE

MEND = (
    "raise close_delay_s ([spillway] in Airflow's configuration) to {grace:g} or more, or lower "
    "session.grace_s to {delay:g} or less"
)


class GraceTooLong(ValueError):
    """A day would be closed while its rows still come."""

    exit_code = USAGE

    def __init__(self, grace_s: float, close_delay_s: float) -> None:
        self.what = (
            f"session.grace_s is {grace_s:g} s, but close_delay_s only {close_delay_s:g} s: the "
            "day would be closed before its grace is over"
        )
        self.mend = MEND.format(grace=grace_s, delay=close_delay_s)
        super().__init__(f"{self.what}; {self.mend}")


def must_outlast_grace(grace_s: float, close_delay_s: float) -> None:
    """Raise `GraceTooLong` when a run `close_delay_s` seconds after the close comes too early."""
    if grace_s > close_delay_s:
        raise GraceTooLong(grace_s, close_delay_s)

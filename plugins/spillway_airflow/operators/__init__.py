"""Operators of the trading day. Each calls the command line in a process of its own.

Safe to retry, to clear and to run twice at once: what they call is (a seal is answered and not
repeated, cleanup appends what is missing exactly once, a stream that runs is left alone).
"""

from spillway_airflow.operators.base import SpillwayOperator
from spillway_airflow.operators.session import (
    CleanupOperator,
    SealOperator,
    SessionOperator,
    VerifyOperator,
    WaitForSealOperator,
)
from spillway_airflow.operators.stream import (
    DoctorOperator,
    EnsureStreamOperator,
    MaintenanceOperator,
    RebalanceOperator,
    StopStreamOperator,
    StreamWatchOperator,
    TopicsOperator,
)

__all__ = [
    "CleanupOperator",
    "DoctorOperator",
    "EnsureStreamOperator",
    "MaintenanceOperator",
    "RebalanceOperator",
    "SealOperator",
    "SessionOperator",
    "SpillwayOperator",
    "StopStreamOperator",
    "StreamWatchOperator",
    "TopicsOperator",
    "VerifyOperator",
    "WaitForSealOperator",
]

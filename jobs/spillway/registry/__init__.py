"""The Schema Registry: what the ids mean that values begin with.

`client` asks it over HTTP, `known` keeps in the warehouse what it has said, for good: verdicts rest
on it, when rows are read again and when a session is proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spillway.decode import StreamPlan
from spillway.registry.client import RegistryClient, RegistryUnavailable, SchemaTrouble
from spillway.registry.known import FOLDER, KnownSchemas
from spillway.storage import Folder
from spillway_schemas.formats import Writers
from spillway_schemas.settings import RegistrySettings

__all__ = ["FOLDER", "RegistryUnavailable", "SchemaTrouble", "knowing", "with_schemas"]


def knowing(settings: RegistrySettings, warehouse: Folder | None) -> Writers:
    """Who says what ids mean. `warehouse`: where that is kept; None: nowhere."""
    client = RegistryClient(settings.url, settings.options, wait_s=settings.wait_s)
    return KnownSchemas(client, None if warehouse is None else warehouse.child(FOLDER))


def with_schemas(
    plans: Iterable[StreamPlan], settings: RegistrySettings, warehouse: Folder | None
) -> tuple[StreamPlan, ...]:
    """Plans of which those of values with ids know whom to ask."""
    found = tuple(plans)
    if not any(plan.format.has_ids for plan in found):
        return found
    writers = knowing(settings, warehouse)
    return tuple(replace(plan, writers=writers) if plan.format.has_ids else plan for plan in found)

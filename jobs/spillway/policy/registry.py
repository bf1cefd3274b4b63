"""The policies that a controller may run, by name: what each needs and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from spillway.policy.clusters import declustering, fine_tuning, supplier_consumer
from spillway.policy.disk import active_disk, lazy_disk
from spillway.policy.flux import flux_hybrid, flux_load, flux_memory
from spillway.policy.operators import balance, degradation
from spillway.policy.pooled import pooled
from spillway.policy.view import NOISE, Advice, View
from spillway_schemas.settings import Settings

Setting = float | int | str


def settings_for_policies(settings: Settings) -> dict[str, Setting]:
    """What policies may take, by the names that they have for it: the section `rebalance`, the
    `threshold` of spills, and the `groups` that a warehouse begins with."""
    return {
        **settings.rebalance.model_dump(),
        "threshold": settings.spill.threshold,
        "groups": settings.state.groups,
    }


@dataclass(frozen=True)
class Policy:
    """A policy and the settings that it takes, by their names: see `settings_for_policies`."""

    decide: Callable[..., Advice]
    settings: tuple[str, ...]
    in_rounds: bool = False
    """Whether its collection time follows Flux's rounds."""

    def advise(self, view: View, settings: Mapping[str, Setting]) -> Advice:
        """Ask the policy, with its settings."""
        return self.decide(view, **self.given(settings))

    def given(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings that it takes."""
        return {name: settings[name] for name in self.settings}


DISK = ("theta_d", "min_span_s")
FORCED = ("theta_f", "threshold")
FLUX = ("th_imb", "th_util")
BUFFERS = ("th_sup", "th_con")

POLICIES: dict[str, Policy] = {
    "pooled": Policy(pooled, (*DISK, *FLUX, "pressure", "threshold")),
    "lazy-disk": Policy(lazy_disk, (*DISK, "relocation_bytes")),
    "active-disk": Policy(active_disk, (*DISK, *FORCED, "relocation_bytes", "forced_bytes")),
    "flux-load": Policy(partial(flux_load, noise=NOISE), FLUX, in_rounds=True),
    "flux-memory": Policy(
        partial(flux_memory, noise=NOISE), ("th_imb", "threshold"), in_rounds=True
    ),
    "flux-hybrid": Policy(partial(flux_hybrid, noise=NOISE), (*FLUX, "threshold"), in_rounds=True),
    "supplier-consumer": Policy(supplier_consumer, BUFFERS),
    "declustering": Policy(declustering, ("beta", *BUFFERS)),
    "fine-tuning": Policy(fine_tuning, ("theta_bytes", "groups")),
    "balance": Policy(balance, DISK),
    "degradation": Policy(degradation, ("degraded", "min_span_s", "th_imb", "threshold")),
}

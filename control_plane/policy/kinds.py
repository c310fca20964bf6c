"""Kinds of documents in a bundle. A new kind needs a struct in `penstock.policy.kinds`, and a row here."""

from __future__ import annotations

from typing import NamedTuple

from penstock.policy.fields import PolicyStruct
from penstock.policy.kinds.billing import Prices, UsageStore
from penstock.policy.kinds.coalescing import Coalescing
from penstock.policy.kinds.dns_names import DnsName, DnsZone
from penstock.policy.kinds.external_sources import DemandSignal
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions
from penstock.policy.kinds.operations import (
    DrillSchedule,
    Event,
    GuardRails,
    MaintenanceWindow,
    Objective,
    RolloutRules,
)
from penstock.policy.kinds.regions import Bloc, EntryMapDocument, GeoRouting, Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, AcceptedRemoval, ResidencyRuleDocument
from penstock.policy.kinds.result_cache import ResultCache
from penstock.policy.kinds.spillover_and_failover import Failover, Spillover, SpilloverLimit
from penstock.policy.kinds.tenants import AnonymousAccess, BrowserAccess, DataClass, Tenant, Tier
from penstock.routes.route import Route, RoutePresets

API_VERSION = "penstock/v1"
"""Version of the format of policy files."""


class Kind(NamedTuple):
    """One kind: the struct of its documents, and the minimum and maximum number of such documents in a bundle."""

    struct: type[PolicyStruct]
    min_count: int
    max_count: int


KINDS = {
    "Region": Kind(Region, 1, 1_000),
    "Bloc": Kind(Bloc, 0, 250),
    "Model": Kind(Model, 1, 1_000),
    "ModelVersions": Kind(ModelVersions, 0, 1_000),
    "ModelRollout": Kind(ModelRollout, 0, 100),
    "Route": Kind(Route, 0, 200),
    "RoutePresets": Kind(RoutePresets, 0, 1),
    "DataClass": Kind(DataClass, 1, 1_000),
    "Tier": Kind(Tier, 0, 1_000),
    "Tenant": Kind(Tenant, 1, 10_000),
    "Issuer": Kind(Issuer, 0, 100),
    "Prices": Kind(Prices, 0, 100),
    "UsageStore": Kind(UsageStore, 0, 100),
    "JobStore": Kind(JobStore, 0, 100),
    "Coalescing": Kind(Coalescing, 0, 1),
    "ResultCache": Kind(ResultCache, 0, 32),
    "AnonymousAccess": Kind(AnonymousAccess, 0, 1),
    "BrowserAccess": Kind(BrowserAccess, 0, 1),
    "ResidencyRule": Kind(ResidencyRuleDocument, 0, 1_000),
    "AcceptedLoss": Kind(AcceptedLoss, 0, 1_000),
    "AcceptedRemoval": Kind(AcceptedRemoval, 0, 1_000),
    "GeoRouting": Kind(GeoRouting, 0, 1),
    "EntryMap": Kind(EntryMapDocument, 0, 1_000),
    "DnsZone": Kind(DnsZone, 0, 20),
    "DnsName": Kind(DnsName, 0, 1_000),
    "Spillover": Kind(Spillover, 0, 1),
    "SpilloverLimit": Kind(SpilloverLimit, 0, 1_000),
    "Failover": Kind(Failover, 0, 1),
    "Objective": Kind(Objective, 0, 1),
    "Rollout": Kind(RolloutRules, 0, 1),
    "GuardRails": Kind(GuardRails, 0, 1),
    "MaintenanceWindow": Kind(MaintenanceWindow, 0, 1_000),
    "Event": Kind(Event, 0, 1_000),
    "DemandSignal": Kind(DemandSignal, 0, 20),
    "Drill": Kind(DrillSchedule, 0, 100),
}

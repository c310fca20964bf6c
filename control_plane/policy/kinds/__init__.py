"""Kinds of documents in a bundle. A new kind needs a model in the module of its subject, and a row in `KINDS`."""

from __future__ import annotations

from typing import NamedTuple

from control_plane.policy.kinds.base import PolicyDocument
from control_plane.policy.kinds.models import ModelDocument, ModelVersionsDocument
from control_plane.policy.kinds.operations import (
    DrillDocument,
    GuardRailsDocument,
    MaintenanceWindowDocument,
    ObjectiveDocument,
    RolloutDocument,
)
from control_plane.policy.kinds.regions import BlocDocument, RegionDocument
from control_plane.policy.kinds.residency import AcceptedLossDocument, AcceptedRemovalDocument, ResidencyRuleDocument
from control_plane.policy.kinds.routes import RouteDocument, RoutePresetsDocument
from control_plane.policy.kinds.routing import (
    EntryMapDocument,
    FailoverDocument,
    GeoRoutingDocument,
    SpilloverDocument,
    SpilloverLimitDocument,
)
from control_plane.policy.kinds.tenants import (
    AnonymousAccessDocument,
    BrowserAccessDocument,
    DataClassDocument,
    TenantDocument,
)


class Kind(NamedTuple):
    """One kind: the model of its documents, and the minimum and maximum number of such documents in a bundle."""

    shape: type[PolicyDocument]
    min_count: int
    max_count: int


KINDS = {
    "Region": Kind(RegionDocument, 1, 1_000),
    "Bloc": Kind(BlocDocument, 0, 250),
    "Model": Kind(ModelDocument, 1, 1_000),
    "ModelVersions": Kind(ModelVersionsDocument, 0, 1_000),
    "Route": Kind(RouteDocument, 0, 200),
    "RoutePresets": Kind(RoutePresetsDocument, 0, 1),
    "DataClass": Kind(DataClassDocument, 1, 1_000),
    "Tenant": Kind(TenantDocument, 1, 10_000),
    "AnonymousAccess": Kind(AnonymousAccessDocument, 0, 1),
    "BrowserAccess": Kind(BrowserAccessDocument, 0, 1),
    "ResidencyRule": Kind(ResidencyRuleDocument, 0, 1_000),
    "AcceptedLoss": Kind(AcceptedLossDocument, 0, 1_000),
    "AcceptedRemoval": Kind(AcceptedRemovalDocument, 0, 1_000),
    "GeoRouting": Kind(GeoRoutingDocument, 0, 1),
    "EntryMap": Kind(EntryMapDocument, 0, 1_000),
    "Spillover": Kind(SpilloverDocument, 0, 1),
    "SpilloverLimit": Kind(SpilloverLimitDocument, 0, 1_000),
    "Failover": Kind(FailoverDocument, 0, 1),
    "Objective": Kind(ObjectiveDocument, 0, 1),
    "Rollout": Kind(RolloutDocument, 0, 1),
    "GuardRails": Kind(GuardRailsDocument, 0, 1),
    "MaintenanceWindow": Kind(MaintenanceWindowDocument, 0, 1_000),
    "Drill": Kind(DrillDocument, 0, 100),
}

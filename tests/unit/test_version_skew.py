"""The version skew that docs/upgrading.md permits: two releases read each other's values, except new policy fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from adapters.store.members import AgentMember, Member
from control_plane.events.journal import JournalEntry
from control_plane.planning.forecast_checkpoint import SavedForecast
from control_plane.planning.plan_epoch import EpochBase
from control_plane.planning.report_intake import ReportReceipt
from control_plane.policy.source.revision import Revision
from control_plane.tenants.money_checkpoint import SavedTotals
from control_plane.ui.session_revocations import RevokedSessions
from penstock.drills.drill_state import Drill
from penstock.fleet.report import AgentReport
from penstock.log_chains.audit_log_chain import AuditEntry, RemovedEntries
from penstock.overrides.overrides import OverrideSet
from penstock.planning.plan import RegionPlan
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKeySet
from penstock.result_cache.cache_purges import CachePurges
from penstock.rollout.model_rollout import ModelRolloutState
from penstock.rollout.policy_rollout import Rollout
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.tenancy.tenant_record import TenantShard
from penstock.tenancy.tokens.issuer_keys import IssuerKeySet
from penstock.wire.peer_probe import PeerProbeRequest, PeerProbeResponse
from penstock.wire.route_context import RouteContext
from regional_agent.shared_load.prefix_exchange import PublishedPrefixes
from regional_agent.shared_load.published_load import PublishedLoad
from regional_agent.upstream.leader_link import Receipt
from tests.support.paths import ROOT

REPORTS = (AgentReport, ReportReceipt, Receipt)
BETWEEN_AGENTS = (PeerProbeRequest, PeerProbeResponse, RouteContext, PublishedLoad, PublishedPrefixes)
STORED = (
    *(Member, AgentMember, RegionPlan, EpochBase, OverrideSet, RevokedKeySet, RevokedSessions, TenantShard),
    *(IssuerKeySet, SavedForecast, SavedTotals, Rollout, Revision, Drill, AuditEntry, RemovedEntries, JournalEntry),
    *(CachePurges, ModelRolloutState),
)


FIELDS_OF_PRESETS = set(
    re.findall(
        r"\w+",
        """
    answer_tokens api_key_header batches body cached_tokens chosen_by_engine client_object converter cost count errors
    first_byte_s foreign_objects generates height max_tokens message_model methods model name object_id objects
    occupies_slot offered path preset previous_object prompt prompt_tokens repeatable request session size speech
    steps stream stream_field streams_by_default tensors timeouts total_s usage uses_tokens width
        """,
    )
)
"""Fields of routes that presets may use: those that the previous release reads (`PREVIOUS` in the Makefile).

Presets are in every policy that a control plane compiles, also in one that uses nothing new. A release reads a new
field before a later one adds the field here and uses it in a preset."""


def structs(type_: Any) -> Iterator[inspect.StructType]:
    """Every struct that a type contains, recursively."""
    found: dict[type, inspect.StructType] = {}
    unread = [inspect.type_info(type_)]
    while unread:
        info = unread.pop()
        if isinstance(info, inspect.StructType):
            if info.cls in found:
                continue
            found[info.cls] = info
            unread += (field.type for field in info.fields)
        elif isinstance(info, inspect.UnionType):
            unread += info.types
        elif isinstance(info, inspect.DictType):
            unread.append(info.value_type)
        elif isinstance(info, inspect.TupleType):
            unread += info.item_types
        elif isinstance(info, inspect.CollectionType):
            unread.append(info.item_type)
    return iter(found.values())


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Nested(msgspec.Struct):
    by_name: dict[str, tuple[_Strict, ...] | None]


def test_every_stored_type_is_listed() -> None:
    reads = re.compile(r"(?:(?<![.\w])decode|\bMirror)\((?:[\w.()\[\]\"]+, )+?([A-Z]\w+)")
    read = {
        name
        for package in ("adapters", "control_plane", "regional_agent")
        for file in (ROOT / package).rglob("*.py")
        for name in reads.findall(file.read_text())
    }
    assert {"Drill", "AgentMember", "Policy"} <= read
    assert read - {type_.__name__ for type_ in STORED} == {"Policy"}


def fields_of(value: Any) -> Iterator[str]:
    """Every field that differs from its default, recursively."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from fields_of(inner)


def test_presets_use_only_fields_that_the_previous_release_reads() -> None:
    used = {
        name
        for preset in PRESETS
        for route in preset_routes(preset)
        for name in fields_of(msgspec.to_builtins(route, order="deterministic"))
    }
    assert used == FIELDS_OF_PRESETS


def test_structs_are_found_inside_others() -> None:
    assert {info.cls for info in structs(_Nested)} == {_Nested, _Strict}


@pytest.mark.parametrize("type_", [*REPORTS, *BETWEEN_AGENTS, *STORED], ids=lambda type_: type_.__name__)
def test_a_field_that_a_newer_release_added_is_ignored(type_: type[msgspec.Struct]) -> None:
    assert [info.cls for info in structs(type_) if info.forbid_unknown_fields] == []


def test_a_field_of_a_policy_that_a_newer_release_added_is_refused() -> None:
    assert [info.cls for info in structs(Policy) if not info.forbid_unknown_fields] == []

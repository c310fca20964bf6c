"""Kind of policy document: the rollout of a version of a model, in steps of its share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from penstock.policy.fields import (
    PORT,
    REQUIRED,
    Conflict,
    ModelRef,
    NonEmpty,
    PolicyStruct,
    RegionRef,
    TenantRef,
    VersionsRef,
    bounds,
    pattern,
)
from penstock.wire.reserved_addresses import is_reserved

TenantRefs = Annotated[tuple[TenantRef, ...], Meta(extra_json_schema={"maxItems": 1000})]
Percent = Annotated[float, bounds(gt=0, le=100)]
Factor = Annotated[float, bounds(ge=1, le=1000)]
HeaderName = Annotated[
    str,
    pattern(r"^x-[a-z0-9-]{1,60}$", "write the name of a header in lower case that begins with x-, such as x-preview"),
]


HookUrl = Annotated[
    str,
    pattern(
        r"^(https://[A-Za-z0-9._-]+|https://\[[0-9A-Fa-f:.]+\]|http://(localhost|127\.0\.0\.1|\[::1\])):"
        + PORT
        + r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,500})?$",
        "write https, a host, a port and a path, such as https://scorer.internal:8443/pairs",
    ),
]


class StickyBy(StrEnum):
    """What keeps its version while the share is unchanged, and moves to the new version at most once as it grows."""

    SESSION = "session"
    TENANT = "tenant"


class QualityHook(PolicyStruct, frozen=True):
    """A URL that scores pairs of answers. For a sample of the copies, the old version runs a copy too, and the hook
    receives the request and both answers, without the name or the key of the tenant."""

    url: Annotated[HookUrl, REQUIRED] = ""
    """URL that receives each pair: https with a port, or http on this machine. Redirects are not followed."""
    region: Annotated[RegionRef, REQUIRED] = ""
    """Region in which the hook processes what it receives: a pair is sent only if residency permits this region for the
    request."""
    percent: Percent = 10.0
    """Share (0-100) of the copies of which the answers are scored."""
    timeout_s: Annotated[float, bounds(ge=0.1, le=300)] = 30.0
    """Maximum time (s) of a response of the hook."""
    min_pairs: Annotated[int, bounds(ge=10, le=1_000_000)] = 50
    """Minimum number of scored pairs before the first step, and before scores count."""
    max_decrease: Annotated[float, bounds(ge=0, le=1)] = 0.1
    """Allowed preference (0-1) for the old version: the new one is worse if the mean score is below its negation."""

    def conflict(self) -> Conflict | None:
        host = self.url.split("//")[-1].split("/")[0].rsplit(":", 1)[0].strip("[]")
        if is_reserved(host):
            return Conflict(f"{host} is an address that no server has", "write the name of the hook's server")
        return None


class ShadowRequests(PolicyStruct, frozen=True):
    """Copies of requests that the new version runs while it has no share. Their responses are dropped, their cost is
    overhead of the fleet, and their results are evidence."""

    percent: Percent = 1.0
    """Share (0-100) of the requests of the old version that are copied."""
    max_concurrent: Annotated[int, bounds(ge=1, le=64)] = 2
    """Maximum number of copies that run at one time at one agent. Further requests are not copied."""
    max_use_percent: Annotated[float, bounds(gt=0, le=95)] = 50.0
    """Part (0-100) of the new version's slots in the region below which a copy may start. A copy never waits, and never
    leaves the region that received the request."""
    min_requests: Annotated[int, bounds(ge=0, le=1_000_000)] = 20
    """Minimum number of copies that have ended before the first step."""
    quality: QualityHook | UnsetType = UNSET
    """Scores of the answers. Absent: answers are compared by their length alone, and leave the fleet for no hook."""


class ModelRollout(PolicyStruct, frozen=True):
    """Moves a name from one version to another in steps, judges the new version at each step, and rolls it back.

    The name is that of a `ModelVersions` document with two versions, whose percentages apply before the rollout and
    after a rollback. The control plane stores the state (`penstock rollout show`); without it, agents keep the last
    share. `steps: [100]` moves everything at once (blue-green), with the requests before it as the baseline.
    """

    name: VersionsRef
    """Name that clients use: that of the `ModelVersions`."""
    to: ModelRef
    """The new version: one of the versions."""
    steps: NonEmpty[tuple[Percent, ...]] = (5.0, 25.0, 50.0, 100.0)
    """Shares (0-100) of the new version, rising. The last one remains."""
    prepare_s: Annotated[float, bounds(ge=0, le=86_400)] = 60.0
    """Minimum time (s) before the first step, in which the old version's results are measured and copies run."""
    step_s: Annotated[float, bounds(ge=0, le=604_800)] = 600.0
    """Minimum time (s) of each step."""
    watch_s: Annotated[float, bounds(ge=0, le=604_800)] = 3600.0
    """Minimum time (s) for which the new version is judged at its last share."""
    min_requests: Annotated[int, bounds(ge=1, le=1_000_000_000)] = 200
    """Minimum number of requests of a version that have ended before they are compared, and before the next step
    or the end of the watch."""
    max_failure_increase: Annotated[float, bounds(ge=0, le=1)] = 0.02
    """Allowed excess (0-1) of the new version's share of failed requests over the old version's."""
    max_first_byte_factor: Factor = 1.5
    """Maximum ratio of the mean times to first byte of streams, new to old."""
    max_token_time_factor: Factor = 1.5
    """Maximum ratio of the mean times per output token, new to old."""
    max_length_factor: Factor = 2.0
    """Maximum ratio of the mean lengths of answers (tokens), whichever is longer."""
    sticky_by: StickyBy = StickyBy.SESSION
    """`session`: by the session of `ModelVersions`; requests without one are drawn independently. `tenant`: all
    requests of a tenant."""
    opt_in_tenants: TenantRefs = ()
    """Tenants that receive the new version at any share. Their requests are no evidence. Default: none."""
    excluded_tenants: TenantRefs = ()
    """Tenants that receive the old version at any share. Default: none."""
    header: HeaderName | UnsetType = UNSET
    """Header by which clients choose: `new` or `old`. Excluded tenants cannot choose. Absent: none."""
    shadow: ShadowRequests | UnsetType = UNSET
    """Copies of requests before the first step. Absent: none."""

    def conflict(self) -> Conflict | None:
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            return Conflict("steps do not rise", "write rising percentages, such as [5, 25, 100]")
        if set(self.opt_in_tenants) & set(self.excluded_tenants):
            return Conflict("a tenant opts in and is excluded", "remove it from one of the lists")
        return None

"""Records of a run for the checks and the report, gathered outside the code under test.

Times are seconds since the start of the schedule, by the monotonic clock of the machine.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from lab.demo.scenario import Scenario
from lab.planet.fleet_watch import Look


class Answer(StrEnum):
    """Result of one attempt at an entry."""

    SERVED = "served"
    REDIRECTED = "redirected"
    """Status 421: residency forbids this entry, and the response named permitted entries."""
    REFUSED = "refused"
    """A typed refusal other than a redirect; no engine started the request."""
    BROKEN = "broken"
    """The connection failed or broke."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt of a client at the entry of a region."""

    at_s: float
    region: str
    answer: Answer


class Outcome(StrEnum):
    """Outcome of a request for the client."""

    OK = "ok"
    REFUSED = "refused"
    """A typed refusal."""
    FAILED = "failed"
    """A broken connection, a timeout, or an invalid response."""


class Served(msgspec.Struct, frozen=True):
    """One request of a client and its result."""

    id: str
    due_s: float
    """Scheduled time (s). Latencies start here, so that a stalled client does not hide them."""
    site: str
    """Name of the client site."""
    tenant: str
    model: str
    required: tuple[str, ...]
    """The regions that may process the request, from the lab's own table."""
    home: str
    """The home region: the nearest to the client's entry of `required` that serves the model."""
    attempts: tuple[Attempt, ...]
    outcome: Outcome
    status: int
    """HTTP status; 0 without a response."""
    detail: str
    """Short reason for a refusal or a failure; empty for an answered request."""
    server: str
    """The region that served the request, as the response states; empty if no region did."""
    endpoint: str
    ttft_s: float | None
    """Time (s) to the first token; None if no token arrived."""
    e2e_s: float | None
    """Time (s) to the last token; None for an incomplete response."""
    tokens: int

    @property
    def origin(self) -> str:
        """The region of the last entry that the client tried; empty without attempts."""
        return self.attempts[-1].region if self.attempts else ""


class ImageJob(msgspec.Struct, frozen=True):
    """One image job and its accounted work."""

    request: Served
    megapixel_steps: float
    """Requested megapixel steps: 10^6 pixels times steps."""
    accounted_megapixel_steps: float | None
    """Megapixel steps in an agent's access log; None if no agent logged the job as answered."""


class Sighting(msgspec.Struct, frozen=True):
    """A request that reached an engine, as recorded by the residency witness."""

    id: str
    at_s: float
    region: str
    endpoint: str
    required: tuple[str, ...]
    """The permitted regions in the request's residency header, which no hop changes."""

    @property
    def violates(self) -> bool:
        """Whether the request reached an engine outside its permitted regions."""
        return self.region not in self.required


class TenantRequest(msgspec.Struct, frozen=True):
    """One request of the scene of tenants."""

    tenant: str
    id: str
    """Value of the response's `x-request-id`; empty without a response."""
    status: int
    """HTTP status; 0 without a response."""
    took_s: float
    detail: str = ""
    """The message of a refusal, or the error."""


class Billed(msgspec.Struct, frozen=True):
    """The ledger's record of one request."""

    id: str
    tenant: str
    outcome: str
    output_tokens: int
    is_estimated: bool


class TenantScene(msgspec.Struct, frozen=True):
    """The records of the scene of tenants. Times are in seconds since the start of the schedule."""

    began_at_s: float
    requests: tuple[TenantRequest, ...]
    revoked_at_s: float | None
    """Time at which the control plane had revoked the key; None if it did not."""
    stream_ended_at_s: float | None
    """Time at which the stream with this key ended; None if it did not end in time."""
    status_after_revocation: int
    """Status of a request with the revoked key."""
    billed: tuple[Billed, ...]
    generated: dict[str, int]
    """Tokens that engines generated, by request id, as the witness recorded them."""
    flood_s: float
    """Duration (s) of the flood."""

    def of(self, tenant: str) -> tuple[TenantRequest, ...]:
        """Return the requests of a tenant."""
        return tuple(request for request in self.requests if request.tenant == tenant)


class BatchScene(msgspec.Struct, frozen=True):
    """The records of one batch. Times are in seconds since the start of the schedule."""

    region: str
    """The region in which the batch was created."""
    requests: int
    """Number of requests in the input file."""
    created_at_s: float
    ended_at_s: float
    status: str
    """Last status that was read."""
    output: tuple[str, ...]
    """Each `custom_id` of the output file, in its order."""
    errors: tuple[str, ...]
    """Each `custom_id` of the error file, in its order."""
    done_before_loss: int | None
    """Completed requests in the last status before the batch's region failed; None if it did not fail."""
    engine_runs: tuple[int, ...]
    """Arrivals at engines for each line of the output file, as the witness recorded them."""
    outside: int
    """Arrivals at engines outside the tenant's permitted regions, by the lab's own table."""
    ran_in: dict[str, int] = {}
    """Arrivals at engines by region."""


class EventKind(StrEnum):
    """Kinds of events on the timeline."""

    SURGE_BEGAN = "surge_began"
    SURGE_ENDED = "surge_ended"
    REGION_KILLED = "region_killed"
    LOSS_DETECTED = "loss_detected"
    REGION_STARTED = "region_started"
    REGION_READY = "region_ready"
    LEADER_KILLED = "leader_killed"
    NEW_LEADER = "new_leader"
    ETCD_KILLED = "etcd_killed"
    REDIS_KILLED = "redis_killed"
    FLOOD_BEGAN = "flood_began"
    KEY_REVOKED = "key_revoked"
    BATCH_CREATED = "batch_created"
    BATCH_ENDED = "batch_ended"
    UNEXPECTED_EXIT = "unexpected_exit"


class Event(msgspec.Struct, frozen=True):
    """A scenario act or an observed state change of the fleet."""

    at_s: float
    kind: EventKind
    text: str


class Run(msgspec.Struct, frozen=True):
    """All records of a run."""

    scenario: Scenario
    served: tuple[Served, ...]
    """The chat requests, without image jobs."""
    sightings: tuple[Sighting, ...]
    started: frozenset[str]
    """Ids of the requests that an engine started."""
    events: tuple[Event, ...]
    looks: tuple[Look, ...]
    failback_ramp_s: float
    """Failback ramp (s) of the policy."""
    images: tuple[ImageJob, ...] = ()
    tenants: TenantScene | None = None
    """None if the scene did not end."""
    batches: tuple[BatchScene, ...] = ()
    """The batches whose records could be read."""
    processes: int = 0
    """Number of processes of the fleet, whose exits were observed."""

    def event(self, kind: EventKind) -> Event | None:
        """Return the first event of a kind; None without such an event."""
        return next((event for event in self.events if event.kind is kind), None)

"""What the run leaves behind for the verdict and the report: plain facts, gathered outside the code under test.

Every time is in seconds since the first request was due, by one machine's monotonic clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from lab.demo.scenario import Scenario


class Answer(StrEnum):
    """How one attempt at an entry ended."""

    SERVED = "served"
    REDIRECTED = "redirected"
    """421: residency forbids this entry, and the answer named others."""
    REFUSED = "refused"
    """Another typed refusal, before anything started."""
    BROKEN = "broken"
    """The connection failed or died."""


class Attempt(msgspec.Struct, frozen=True):
    """One time that a client went to a region's entry."""

    at_s: float
    region: str
    answer: Answer


class Outcome(StrEnum):
    """Outcome of a request for the client."""

    OK = "ok"
    REFUSED = "refused"
    """A typed refusal."""
    FAILED = "failed"
    """Anything else: broken, timed out, garbled."""


class Served(msgspec.Struct, frozen=True):
    """One request of one client, from when it was due to when it was over."""

    id: str
    due_s: float
    """When it should have been sent; latencies count from here, so a stalled client hides nothing."""
    site: str
    """Name of the client site."""
    tenant: str
    model: str
    required: tuple[str, ...]
    """The regions that may ever touch it, by the lab's own table."""
    home: str
    """Of those, the nearest to the client."""
    attempts: tuple[Attempt, ...]
    outcome: Outcome
    status: int
    """HTTP status; 0 where there was none."""
    detail: str
    """Why it was refused or failed, in a few words; empty for a served one."""
    server: str
    """The region that served it, by the answer; empty where none did."""
    endpoint: str
    ttft_s: float | None
    """Time to first token; None where none came."""
    e2e_s: float | None
    """Time to the last token; None where it did not come."""
    tokens: int

    @property
    def origin(self) -> str:
        """The entry that took it in, or the last that was tried."""
        return self.attempts[-1].region if self.attempts else ""


class ImageJob(msgspec.Struct, frozen=True):
    """One image job, and what agents accounted for it."""

    request: Served
    megapixel_steps: float
    """As the request asked for: 10^6 pixels times steps."""
    accounted_megapixel_steps: float | None
    """As the access log of an agent has it; None where no agent logged the job as answered."""


class Sighting(msgspec.Struct, frozen=True):
    """The residency witness saw a request reach an engine."""

    id: str
    at_s: float
    region: str
    endpoint: str
    required: tuple[str, ...]
    """As the request itself said it, in a header that nothing on the way may change."""

    @property
    def violates(self) -> bool:
        """Whether it reached an engine where it may never be."""
        return self.region not in self.required


class EventKind(StrEnum):
    """What happened, as the timeline marks it."""

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
    DIED_UNASKED = "died_unasked"


class Event(msgspec.Struct, frozen=True):
    """Something that was done to the planet, or that it did."""

    at_s: float
    kind: EventKind
    text: str


class PeerState(msgspec.Struct, frozen=True):
    """The state of a region as another region's agent reported it; recorded at each change."""

    at_s: float
    observer: str
    region: str
    state: str


class PeerMiss(msgspec.Struct, frozen=True):
    """An agent was seen to have tried a request at a region that did not take it (its retry counter had grown)."""

    at_s: float
    observer: str
    region: str


class Run(msgspec.Struct, frozen=True):
    """Everything the verdict looks at."""

    scenario: Scenario
    served: tuple[Served, ...]
    """The chats."""
    sightings: tuple[Sighting, ...]
    started: frozenset[str]
    """Requests whose work some engine began."""
    events: tuple[Event, ...]
    peer_states: tuple[PeerState, ...]
    peer_misses: tuple[PeerMiss, ...]
    failback_ramp_s: float
    """The ramp that policy asks for."""
    images: tuple[ImageJob, ...] = ()

    def event(self, kind: EventKind) -> Event | None:
        """The first event of that kind."""
        return next((event for event in self.events if event.kind is kind), None)

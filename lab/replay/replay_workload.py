"""The requests of a replay: a schedule fixed before the first request is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from lab.geoip import ClientSite
from lab.traces.trace import TraceRequest


class ImageSize(msgspec.Struct, frozen=True):
    """Parameters that determine the work of an image."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    steps: int

    @property
    def megapixel_steps(self) -> float:
        """10^6 pixels times steps."""
        return self.width * self.height / 1e6 * self.steps


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request of the schedule."""

    id: str
    """Unique id, sent as x-request-id in every attempt."""
    at_s: float
    """Due time (s) since the start of the replay."""
    site: str
    """Name of the client site, which determines the entries."""
    client_address: str
    tenant: str
    api_key: str
    """API key of the tenant; empty sends no key."""
    model: str
    lengths: TraceRequest
    """Prompt, output and prefix; the time of the trace request is not used."""
    required_regions: tuple[str, ...] = ()
    """Regions that may process the request, computed outside Penstock for the residency witness; empty if unknown."""
    hang_up_after_tokens: int | None = None
    """Number of tokens after which the client disconnects; None reads to the end."""
    max_tokens: int | None = None
    """Token limit of the request, where the prompt's text ends with the length of the answer, which only the lab's
    engines read. None: the limit is the length of the answer."""
    image: ImageSize | None = None
    """The requested image, in a response that is not streamed; None for other requests."""
    embedding: bool = False
    """Whether the request is for an embedding, in a response that is not streamed."""


class Sender(msgspec.Struct, frozen=True):
    """A tenant's key and model."""

    tenant: str
    api_key: str
    model: str
    share: float = 1.0
    """Weight of the sender in the requests of a site, relative to the weights of all senders."""


def plan_requests(
    trace: Sequence[TraceRequest],
    sites: Sequence[ClientSite],
    senders: Sequence[Sender],
    required_regions: Callable[[ClientSite, Sender], tuple[str, ...]],
    hang_up_share: float,
    rng: Random,
) -> list[PlannedRequest]:
    """Assign a random site and sender to each request of a trace. Requests of one conversation have the same site.

    Args:
        trace: arrival times and lengths of requests.
        sites: client sites, drawn by share.
        senders: senders, drawn by share.
        required_regions: returns the regions that may process a request, by site and sender.
        hang_up_share: share (0-1) of the clients that disconnect during the response.
        rng: the only source of randomness.
    """
    site_shares = [site.share for site in sites]
    sender_shares = [sender.share for sender in senders]
    planned = []
    homes: dict[str, ClientSite] = {}
    for number, lengths in enumerate(trace):
        site = rng.choices(sites, site_shares)[0]
        if lengths.conversation:
            site = homes.setdefault(lengths.conversation, site)
        sender = rng.choices(senders, sender_shares)[0]
        leaves = rng.random() < hang_up_share and lengths.output_tokens > 1
        planned.append(
            PlannedRequest(
                id=f"r{number:07d}-{rng.getrandbits(32):08x}",
                at_s=lengths.at_s,
                site=site.name,
                client_address=site.address(rng),
                tenant=sender.tenant,
                api_key=sender.api_key,
                model=sender.model,
                lengths=lengths,
                required_regions=required_regions(site, sender),
                hang_up_after_tokens=rng.randrange(1, lengths.output_tokens) if leaves else None,
            )
        )
    return planned

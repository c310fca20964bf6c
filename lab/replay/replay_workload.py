"""The requests of a replay: a schedule fixed before the first request is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from lab.geoip import ClientSite
from lab.traces.trace import TraceRequest


class ImageSize(msgspec.Struct, frozen=True):
    """What determines the work of an image."""

    width: int
    height: int
    """Pixels, as the width."""
    steps: int

    @property
    def megapixel_steps(self) -> float:
        """10^6 pixels times steps."""
        return self.width * self.height / 1e6 * self.steps


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request that a client is going to send."""

    id: str
    """Unique; sent as x-request-id, the same in every try."""
    at_s: float
    """When it is due, in seconds since the replay begins."""
    site: str
    """Name of the client site, which determines the entries."""
    client_address: str
    tenant: str
    api_key: str
    """The tenant's key; empty sends none."""
    model: str
    lengths: TraceRequest
    """Prompt, output and prefix; its own time is not used."""
    required_regions: tuple[str, ...] = ()
    """Regions that may ever touch it, computed outside Penstock for the residency witness; empty if unknown."""
    hang_up_after_tokens: int | None = None
    """The client leaves once so many tokens have come; None stays to the end."""
    image: ImageSize | None = None
    """The image that it asks for, in a response that is not streamed; None for a chat."""
    embedding: bool = False
    """Whether it asks for the embedding of its text, which is not streamed either."""


class Sender(msgspec.Struct, frozen=True):
    """A tenant's key and model."""

    tenant: str
    api_key: str
    model: str
    share: float = 1.0
    """Part of a site's requests, relative to the other senders'."""


def lay_over(
    trace: Sequence[TraceRequest],
    sites: Sequence[ClientSite],
    senders: Sequence[Sender],
    required_regions: Callable[[ClientSite, Sender], tuple[str, ...]],
    hang_up_share: float,
    rng: Random,
) -> list[PlannedRequest]:
    """Lay geography over arrivals: each request of a trace gets a place and a sender, independently of all others but
    those of its conversation, which are from the same place.

    Args:
        trace: when requests come and how long they are.
        sites: where from, by share.
        senders: whose they are, by share.
        required_regions: the lab's own word on where a request may be, by its place and sender.
        hang_up_share: part (0-1) of the clients that leave somewhere in the middle of the answer.
        rng: the only source of chance.
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

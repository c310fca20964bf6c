"""A WAN: links that are started, changed and closed together."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from lab.wan.link import Link, LinkStatus
from lab.wan.wan_config import Fault, LinkPlan


class Selector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the links of a fault: those that match every given field."""

    link: str | None = None
    """The name of one link."""
    origin: str | None = msgspec.field(name="from", default=None)
    """All links from this site."""
    to: str | None = None
    """All links to this site."""

    def matches(self, plan: LinkPlan) -> bool:
        """Whether the selector matches the link; an empty selector matches all."""
        return self.link in (None, plan.name) and self.origin in (None, plan.origin) and self.to in (None, plan.to)


class Wan:
    """A network of links. Use as an async context manager, or start and close it."""

    def __init__(self, plans: Sequence[LinkPlan], rng: Random, host: str = "127.0.0.1") -> None:
        """Args: `rng` draws jitter; `host` is the address that every link listens on."""
        self.links = {plan.name: Link(plan, host, rng) for plan in plans}

    async def start(self) -> None:
        """Listen on every link, or on none.

        Raises:
            WanConfigError: a port is in use.
        """
        try:
            for link in self.links.values():
                await link.start()
        except BaseException:
            await self.close()
            raise

    async def apply(self, selector: Selector, fault: Fault) -> list[str]:
        """Replace the fault of every matching link and return the names of the links."""
        chosen = [link for link in self.links.values() if selector.matches(link.plan)]
        for link in chosen:
            await link.apply(fault)
        return [link.plan.name for link in chosen]

    def statuses(self) -> list[LinkStatus]:
        """The status of every link."""
        return [link.status() for link in self.links.values()]

    async def close(self) -> None:
        """Stop listening and reset every connection."""
        for link in self.links.values():
            await link.close()

    async def __aenter__(self) -> Wan:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

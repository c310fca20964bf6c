"""What a planet consists of: regions with their agents and engines, client sites, and the ways between. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lab.geoip import SITES, ClientSite

CHAT_8B = "llama-3.1-8b"
CHAT_70B = "llama-3.1-70b"
IMAGE_MODEL = "sdxl"


class Engine(msgspec.Struct, frozen=True):
    """One model server."""

    name: str
    model: str
    accelerator: str
    zone: str
    max_num_seqs: int
    """Requests that it runs at once: few, so that a handful of requests per second fill it."""
    pace_of: str = ""
    """Model of `lab.engine.models` that sets its pace; empty for `model` itself."""


class Region(msgspec.Struct, frozen=True):
    """One region's processes."""

    name: str
    city: str
    agents: tuple[str, ...]
    engines: tuple[Engine, ...]


class Topology(msgspec.Struct, frozen=True):
    """The whole planet."""

    regions: tuple[Region, ...]
    sites: tuple[ClientSite, ...]
    control_planes: tuple[str, ...]
    time_scale: float
    """How many times as fast as the modelled hardware the engines run."""
    etcd_members: tuple[str, ...] = ("etcd",)

    @property
    def region_names(self) -> tuple[str, ...]:
        """Every region."""
        return tuple(region.name for region in self.regions)

    def serving(self, model: str) -> tuple[str, ...]:
        """The regions that have an engine for the model."""
        return tuple(r.name for r in self.regions if any(engine.model == model for engine in r.engines))

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that some engine serves."""
        return tuple(sorted({engine.model for region in self.regions for engine in region.engines}))

    def region(self, name: str) -> Region:
        """The region of that name."""
        return next(region for region in self.regions if region.name == name)

    def port_names(self) -> list[str]:
        """Everything that listens, in a fixed order."""
        names = [etcd_port(member, face) for member in self.etcd_members for face in ("client", "peer")]
        names += ["redis", "wan control", *map(control_plane_port, self.control_planes)]
        for region in self.regions:
            names += [agent_port(region.name, agent, face) for agent in region.agents for face in FACES]
            names += [engine_port(region.name, engine.name) for engine in region.engines]
        return names + [link.name for link in self.links()]

    def links(self) -> Iterator[Link]:
        """Every way through the WAN: from client sites to agents, from regions to agents of others and to etcd."""
        for region in self.regions:
            for member in self.etcd_members:
                yield Link(etcd_link(region.name, member), region.name, ETCD, member, "client")
            for agent in region.agents:
                for site in self.sites:
                    yield Link(entry_link(site.name, region.name, agent), site.name, region.name, agent, "traffic")
                for origin in self.regions:
                    if origin.name != region.name:
                        yield Link(peer_link(origin.name, region.name, agent), origin.name, region.name, agent, "peer")


FACES = ("traffic", "peer", "admin")
"""The sockets of an agent."""

ETCD = "etcd"
"""The site of etcd, of which regions are equally far."""


class Link(msgspec.Struct, frozen=True):
    """One way through the WAN to one face of one agent."""

    name: str
    origin: str
    """A client site or a region."""
    region: str
    """Where the target stands; ETCD for a member of etcd."""
    agent: str
    """The agent there, or the member of etcd."""
    face: str

    @property
    def target_port(self) -> str:
        """The name of the socket that it leads to."""
        return (
            etcd_port(self.agent, self.face) if self.region == ETCD else agent_port(self.region, self.agent, self.face)
        )


def agent_port(region: str, agent: str, face: str) -> str:
    """The name of an agent's socket."""
    return f"{region}/{agent} {face}"


def engine_port(region: str, engine: str) -> str:
    """The name of an engine's socket."""
    return f"{region} engine {engine}"


def etcd_port(member: str, face: str) -> str:
    """The name of a socket of a member of etcd."""
    return f"{member} {face}"


def etcd_link(origin: str, member: str) -> str:
    """The name of the way from a region to a member of etcd."""
    return f"{origin} > {member}"


def control_plane_port(name: str) -> str:
    """The name of a control plane's socket."""
    return f"control plane {name}"


def entry_link(site: str, region: str, agent: str) -> str:
    """The name of the way from a client site to an agent."""
    return f"{site} > {region}/{agent}"


def peer_link(origin: str, region: str, agent: str) -> str:
    """The name of the way from a region to another region's agent."""
    return f"{origin} > {region}/{agent}"


def demo_planet(sites: Sequence[ClientSite] = SITES) -> Topology:
    """Five regions, two of them in the EU; the large model runs in three of them, and images are generated in four;
    us-east has two agents, so that their shared view in Redis is real."""
    images = ["h100", "a100"]
    return Topology(
        regions=(
            _region("eu-de", "Frankfurt", "a", [("a100", 9), ("l40s", 8)], [("h100", 7)], images),
            _region("eu-es", "Madrid", "a", [("a100", 9), ("l40s", 6)], [("h100", 8)], images),
            _region("eu-gb", "London", "a", [("h100", 7), ("l40s", 5)], [], []),
            _region("us-east", "Washington DC", "ab", [("h100", 8), ("l40s", 6)], [("h100", 8)], images),
            _region("jp-tok", "Tokyo", "a", [("a100", 8), ("l40s", 4)], [], ["a100"]),
        ),
        sites=tuple(sites),
        control_planes=("north", "south"),
        time_scale=0.6,
    )


def _region(
    name: str, city: str, agents: str, small: list[tuple[str, int]], large: list[tuple[str, int]], images: list[str]
) -> Region:
    """A region whose engines stand in a zone each, in turn.

    Args:
        small: accelerator and slots of each engine of the small chat model.
        large: the same, of the large one.
        images: accelerator of each engine that generates images, one at a time.
    """
    wanted = [
        *(("small", CHAT_8B, "", *engine) for engine in small),
        *(("large", CHAT_70B, "", *engine) for engine in large),
        *(("images", IMAGE_MODEL, CHAT_8B, accelerator, 1) for accelerator in images),
    ]
    engines = tuple(
        Engine(f"{name}-{kind}-{accelerator}", model, accelerator, f"{name}-{index % 2 + 1}", slots, pace_of)
        for index, (kind, model, pace_of, accelerator, slots) in enumerate(wanted)
    )
    return Region(name, city, tuple(agents), engines)

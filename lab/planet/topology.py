"""The topology of a fleet: regions with agents and engines, client sites, and WAN links."""

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
    """Maximum number of concurrent requests. It is small, so that a few requests per second fill the engine."""
    pace_of: str = ""
    """Model of `lab.engine.models` that determines the speed; empty for `model`."""


class Region(msgspec.Struct, frozen=True):
    """The agents and engines of one region."""

    name: str
    city: str
    agents: tuple[str, ...]
    engines: tuple[Engine, ...]


class Topology(msgspec.Struct, frozen=True):
    """The processes and client sites of a fleet."""

    regions: tuple[Region, ...]
    sites: tuple[ClientSite, ...]
    control_planes: tuple[str, ...]
    time_scale: float
    """Speed of the engines relative to the modelled hardware."""
    etcd_members: tuple[str, ...] = ("etcd",)

    @property
    def region_names(self) -> tuple[str, ...]:
        """The names of all regions."""
        return tuple(region.name for region in self.regions)

    def serving(self, model: str) -> tuple[str, ...]:
        """Return the regions with an engine for a model."""
        return tuple(r.name for r in self.regions if any(engine.model == model for engine in r.engines))

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the engines serve, in alphabetical order."""
        return tuple(sorted({engine.model for region in self.regions for engine in region.engines}))

    def region(self, name: str) -> Region:
        """Return the region with a name."""
        return next(region for region in self.regions if region.name == name)

    def port_names(self) -> list[str]:
        """Return the names of all listening sockets, in a fixed order."""
        names = [etcd_port(member, face) for member in self.etcd_members for face in ("client", "peer")]
        names += ["redis", "wan control", *map(control_plane_port, self.control_planes)]
        for region in self.regions:
            names += [agent_port(region.name, agent, face) for agent in region.agents for face in FACES]
            names += [engine_port(region.name, engine.name) for engine in region.engines]
        return names + [link.name for link in self.links()]

    def links(self) -> Iterator[Link]:
        """Yield every WAN link: from client sites to agents, and from regions to etcd and other regions' agents."""
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
"""The listeners of an agent."""

ETCD = "etcd"
"""Name of the location of etcd, to which the round trip is the same from all regions."""


class Link(msgspec.Struct, frozen=True):
    """One WAN link to a listener of an agent or of an etcd member."""

    name: str
    origin: str
    """A client site or a region."""
    region: str
    """Region of the target; ETCD for a member of etcd."""
    agent: str
    """Name of the target agent or etcd member."""
    face: str

    @property
    def target_port(self) -> str:
        """The port name of the target listener."""
        return (
            etcd_port(self.agent, self.face) if self.region == ETCD else agent_port(self.region, self.agent, self.face)
        )


def agent_port(region: str, agent: str, face: str) -> str:
    """Return the port name of an agent's listener."""
    return f"{region}/{agent} {face}"


def engine_port(region: str, engine: str) -> str:
    """Return the port name of an engine."""
    return f"{region} engine {engine}"


def etcd_port(member: str, face: str) -> str:
    """Return the port name of an etcd member's listener."""
    return f"{member} {face}"


def etcd_link(origin: str, member: str) -> str:
    """Return the name of the link from a region to an etcd member."""
    return f"{origin} > {member}"


def control_plane_port(name: str) -> str:
    """Return the port name of a control plane."""
    return f"control plane {name}"


def entry_link(site: str, region: str, agent: str) -> str:
    """Return the name of the link from a client site to an agent."""
    return f"{site} > {region}/{agent}"


def peer_link(origin: str, region: str, agent: str) -> str:
    """Return the name of the link from a region to another region's agent."""
    return f"{origin} > {region}/{agent}"


def demo_planet(sites: Sequence[ClientSite] = SITES) -> Topology:
    """Return the topology of the demo: five regions, two of them in the EU.

    Three regions serve the large model, four generate images. us-east has two agents, which share load through Redis.
    """
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
    """Return a region whose engines are assigned to two zones alternately.

    Args:
        small: accelerator and slots of each engine of the small chat model.
        large: accelerator and slots of each engine of the large chat model.
        images: accelerator of each image engine; each has one slot.
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

"""The policy of the front door: an address for each region, a zone, and names; added to the bundle of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from control_plane.policy.folder import read_folder
from lab.planet.bundle import SHIPPED_BUNDLE
from lab.planet.topology import CHAT_8B, Engine, Region, Topology

ZONE = "api.example.com"
EU_NAME, OPEN_NAME = f"eu.{ZONE}", f"all.{ZONE}"
TTL_S = 1
"""Shorter than the time for which an SDK repeats a request, less the time until name servers have new answers."""

ENVOYS = ("eu-de", "us-east")
"""Regions with Envoy and a name server."""

ENTRIES = {"eu-de": "127.77.0.10", "eu-es": "127.77.0.20", "eu-gb": "127.77.0.30", "us-east": "127.77.0.40"}
"""Address of each region's entry: Envoy in `ENVOYS`, else the agent itself."""

NAME_SERVERS = {"eu-de": "127.77.1.10", "us-east": "127.77.1.40"}

_CITIES = {"eu-de": "Frankfurt", "eu-es": "Madrid", "eu-gb": "London", "us-east": "Washington DC"}


def topology() -> Topology:
    """Return four regions with an agent and two engines each."""
    regions = tuple(
        Region(
            name,
            city,
            ("a",),
            tuple(Engine(f"{name}-{number}", CHAT_8B, "h100", f"{name}-{number}", 24) for number in (1, 2)),
        )
        for name, city in _CITIES.items()
    )
    return Topology(regions, (), ("north",), 4.0)


def bundle() -> dict[str, str]:
    """Return the shipped bundle with entries of the regions, and with names."""
    files = read_folder(SHIPPED_BUNDLE)
    found = {name: _with_entries(name, text) for name, text in files.items()}
    return found | {"front-door.yaml": yaml.safe_dump_all(_names(), sort_keys=False)}


def _with_entries(name: str, text: str) -> str:
    """Add its entry to each region's document."""
    if Path(name).name != "regions.yaml":
        return text
    documents: list[Mapping[str, object]] = list(yaml.safe_load_all(text))
    return yaml.safe_dump_all(
        [
            document | {"entry": {"addresses": [ENTRIES[str(document["name"])]]}}
            if document["name"] in ENTRIES
            else document
            for document in map(dict, documents)
        ],
        sort_keys=False,
    )


def _names() -> list[dict[str, object]]:
    servers = {f"ns{number}.{ZONE}": [address] for number, address in enumerate(NAME_SERVERS.values(), start=1)}
    zone: dict[str, object] = {
        "kind": "DnsZone",
        "name": ZONE,
        "name_servers": servers,
        "contact": f"hostmaster.{ZONE}",
    }
    names: list[dict[str, object]] = [
        {"kind": "DnsName", "name": EU_NAME, "tenants": ["eu-personal"], "ttl_s": TTL_S},
        {"kind": "DnsName", "name": OPEN_NAME, "tenants": ["open"], "ttl_s": TTL_S},
    ]
    return [{"apiVersion": "penstock/v1", **each} for each in (zone, *names)]

"""Servers that a directory lists, their attributes in the directory, and the endpoints that are created from them.

An invalid attribute is reported, and replaced by the value of the entry in the endpoints file, because a mistake in one
label must not remove a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.health.engines.engine_kinds import EngineKind
from penstock.wire.reserved_addresses import is_reserved
from regional_agent.endpoints.endpoint_fields import CHECKS, EndpointSpec
from regional_agent.endpoints.endpoint_options import InvalidField, Pairs

MAX_SERVERS: Final = 1024
"""Maximum number of endpoints of one entry; further servers are not used."""

MAX_NAME: Final = 17
"""Maximum characters of an entry's name; its endpoints' names append an address of up to 39 and a port."""

MAX_PROBLEMS: Final = 5
"""Maximum number of problems that a status shows for one entry."""


class DiscoveredServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One address and port, with the attributes from the directory."""

    address: str
    port: int
    models: tuple[str, ...] = ()
    slots: int | None = None
    """Maximum number of concurrent requests; None for the value of the entry."""
    engine: EngineKind | None = None
    zone: str = ""
    accelerator: str = ""
    pool: str = ""


class Attributes(msgspec.Struct, frozen=True):
    """Properties of a server, besides its address, in a directory; see DiscoveredServer."""

    models: tuple[str, ...] = ()
    slots: int | None = None
    engine: EngineKind | None = None
    zone: str = ""
    accelerator: str = ""
    pool: str = ""


def read_attributes(values: Mapping[str, str], where: str, problems: list[str]) -> Attributes:
    """Parse the attributes of a server.

    Args:
        values: texts by field name of the endpoints file; models are separated by commas.
        where: name of the object that contains the attributes, for problems.
        problems: receives a line for each invalid value, which is omitted from the result.
    """
    parsed: dict[str, Any] = {}
    for field, value in values.items():
        given: Any = value.strip()
        if field == "models":
            given = [model.strip() for model in value.split(",") if model.strip()]
        elif field == "slots" and given.isascii() and given.isdigit():
            given = int(given[:9])
        try:
            checked = CHECKS[field][1](given)
        except InvalidField as error:
            problems.append(f"{where}: {field}: {error}")
            if field == "pool":
                # The models of no pool that policy knows: an endpoint that is meant for some must not serve all.
                parsed[field] = "invalid"
            continue
        parsed[field] = checked
    return Attributes(**parsed)


def expanded(template: EndpointSpec, servers: Iterable[DiscoveredServer]) -> tuple[EndpointSpec, ...]:
    """Return one endpoint for each server that has a model and slots. Every agent generates the same names.

    Args:
        template: the entry; its name is a prefix.
        servers: as the directory lists them, in any order.
    """
    specs: dict[str, EndpointSpec] = {}
    for server in sorted(servers, key=lambda server: (server.address, server.port)):
        models = server.models or template.models
        slots = template.slots if server.slots is None else server.slots
        if not models or not slots:
            continue
        name = f"{template.name}-{server.address.replace(':', '-').strip('-')}-{server.port}"
        specs.setdefault(
            name,
            msgspec.structs.replace(
                template,
                name=name,
                address=template.address._replace(host=server.address, port=server.port),
                models=models,
                slots=slots,
                engine=server.engine or template.engine,
                zone=server.zone or template.zone,
                accelerator=server.accelerator or template.accelerator,
                pool=server.pool or template.pool,
                engine_names=_names_for(models, template.engine_names),
            ),
        )
        if len(specs) == MAX_SERVERS:
            break
    return tuple(specs.values())


def _names_for(models: tuple[str, ...], names: Pairs) -> Pairs:
    """Return the engine's names of `models`, without names that are names of other models of the server."""
    return tuple((model, name) for model, name in names if model in models and (name == model or name not in models))


def of_one_family(servers: Sequence[DiscoveredServer]) -> list[DiscoveredServer]:
    """Return the servers with IPv4 addresses if any exist, else all; without reserved addresses (see `is_reserved`)."""
    usable = [server for server in servers if not is_reserved(server.address)]
    return [server for server in usable if ":" not in server.address] or usable

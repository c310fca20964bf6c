"""The sources of a region's endpoints: the endpoints file, the directories that it names, and registration.

If two endpoints have the same name or address, the earlier entry of the file takes precedence, then the earlier
registration. An invalid file changes nothing; its problem is logged once and shown in the agent's status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import structlog

from adapters.files.plain_file import Stamp, ThreadedRead, UnusableFile, file_stamp
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.discovery.dns_discovery import Resolve
from regional_agent.endpoints.discovery.endpoint_discovery import EndpointDiscovery, Entry
from regional_agent.endpoints.endpoint import OutlierDetection
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import parse_endpoints, read_endpoint_file
from regional_agent.upstream.address import Address

FILE_CHECK_S: Final = 1.0
"""Interval (s) between two checks of the file for changes."""

_NEVER_READ: Final = (-1, -1, -1, -1, -1, -1)

log = structlog.get_logger()


class EndpointSettings(NamedTuple):
    """The settings of a region's endpoints at one agent."""

    file: Path
    """The endpoints file, see `endpoint_file`."""
    zone: str = ""
    """The agent's zone; empty if zones are not used."""
    outlier_detection: OutlierDetection | None = None
    """None for the defaults."""
    upstream_ca: Path | None = None
    """Authorities that sign the certificates of engines; None uses the system's trust store."""
    state_dir: Path | None = None
    """Where the answers of directories are kept, see `EndpointDiscovery`."""
    resolve: Resolve | None = None
    """See `DnsResolver`."""


class EndpointSources:
    """The configured, resolved and registered endpoints, without conflicts."""

    def __init__(
        self,
        settings: EndpointSettings,
        rng: Random,
        on_change: Callable[[], None],
        *,
        read_ahead: Callable[[Iterable[EndpointSpec]], None] = lambda _: None,
    ) -> None:
        """Read the file.

        Args:
            rng: adds jitter to queries.
            on_change: called after `specs` has changed.
            read_ahead: receives the templates of a changed file, in a thread, to read the files that they name.

        Raises:
            BadEndpointFile: the file is invalid; an agent does not start with an invalid file.
        """
        self.problem: str | None = None
        """The problem of the current file; None while its content is in force."""
        self.discovery = EndpointDiscovery(rng, self._update, state_dir=settings.state_dir, resolve=settings.resolve)
        """The directories that the file names."""
        self.specs: list[EndpointSpec] = []
        """The endpoints of all sources; names and addresses are unique."""
        self._file = settings.file
        self._on_change = on_change
        self._read_ahead = read_ahead
        self._registered: dict[str, EndpointSpec] = {}
        self._stamp: Stamp | None = _NEVER_READ
        self._changed_entries = ThreadedRead(self._read_if_changed, str(settings.file))
        self._entries: tuple[Entry, ...] = self._read_if_changed() or ()
        self._merge()

    def register(self, spec: EndpointSpec) -> str | None:
        """Add or update a registered endpoint. Returns the reason of a rejection, or None.

        The caller limits the number of registered endpoints, and unregisters them.
        """
        spec = spec.in_pool()
        for other in self.specs:
            is_update = other.name == spec.name and other is self._registered.get(spec.name)
            if not is_update and other.name == spec.name:
                return f"name: the endpoints file already contains {spec.name}; choose another name"
            if not is_update and other.address == spec.address:
                return f"url: {spec.address} is the address of {other.name}; each endpoint needs its own"
        if self._registered.get(spec.name) != spec:
            self._registered[spec.name] = spec
            self._update()
            log.info("endpoint registered", endpoint=spec.name, address=str(spec.address))
        return None

    def unregister(self, name: str) -> None:
        """Remove a registered endpoint."""
        if self._registered.pop(name, None) is not None:
            self._update()
            log.info("endpoint unregistered; it drains", endpoint=name)

    async def reload_file(self) -> None:
        """Apply the file if it has changed; reject an invalid file as a whole. Reads in a thread."""
        try:
            entries = await self._changed_entries()
        except UnusableFile as error:
            if str(error) != self.problem:
                log.error("endpoints file rejected; the last valid one stays in force", problem=str(error))
            self.problem = str(error)
            return
        if entries is not None:
            self.problem = None
            self._entries = entries
            self._update()
            log.info("endpoints file read", file=str(self._file), entries=len(entries))

    async def keep_reloading_file(self) -> None:
        """Check the file for changes until cancelled."""
        while True:
            await sleep_until_tick(FILE_CHECK_S)
            await self.reload_file()

    def _update(self) -> None:
        self._merge()
        self._on_change()

    def _merge(self) -> None:
        """Merge the sources; drop each endpoint whose name or address an earlier endpoint has."""
        by_name: dict[str, EndpointSpec] = {}
        addresses: set[Address] = set()
        found = (spec.in_pool() for spec in self.discovery.expanded(self._entries))
        for spec in (*found, *self._registered.values()):
            if spec.name not in by_name and spec.address not in addresses:
                by_name[spec.name] = spec
                addresses.add(spec.address)
        self.specs = list(by_name.values())

    def _read_if_changed(self) -> tuple[Entry, ...] | None:
        stamp = file_stamp(self._file)
        if stamp == self._stamp:
            return None
        self._stamp = _NEVER_READ
        content = read_endpoint_file(self._file)
        self._stamp = stamp
        entries = parse_endpoints(content, self._file)
        self._read_ahead(entry if isinstance(entry, EndpointSpec) else entry.template for entry in entries)
        return entries

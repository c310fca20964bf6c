"""All directories that the endpoints file names, and their last answers on disk.

An agent that starts while a directory is unavailable uses the stored answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from regional_agent.background_tasks import cancel, keep_running, sleep_until_tick
from regional_agent.config.last_known_good import StateFile
from regional_agent.endpoints.discovery.discovered_server import DiscoveredServer
from regional_agent.endpoints.discovery.dns_discovery import DnsEntry, DnsResolver, Resolve
from regional_agent.endpoints.discovery.kubernetes_discovery import KubernetesWatch
from regional_agent.endpoints.discovery.kubernetes_entry import KubernetesEntry, KubernetesSource
from regional_agent.endpoints.endpoint_fields import EndpointSpec

Entry = EndpointSpec | DnsEntry | KubernetesEntry
"""An entry of the endpoints file."""

FILE: Final = "discovered"
"""Name of the file in the agent's state directory."""

CHECK_S: Final = 0.2
"""Interval (s) at which the events from Kubernetes API servers are applied together."""


class StoredAnswers(msgspec.Struct, frozen=True):
    """The content of the file."""

    answers: dict[str, tuple[DiscoveredServer, ...]] = {}
    """The servers of each Kubernetes source."""
    addresses: dict[str, tuple[str, ...]] = {}
    """The addresses of each host name of `dns` entries."""


class EndpointDiscovery:
    """Resolves the names, and watches the Kubernetes sources, of the entries."""

    def __init__(
        self,
        rng: Random,
        on_change: Callable[[], None],
        *,
        state_dir: Path | None,
        resolve: Resolve | None = None,
    ) -> None:
        """Load the stored answers, without a query to a directory.

        Args:
            rng: adds jitter to queries.
            on_change: called after the endpoints of an entry have changed.
            state_dir: directory of the stored answers; None stores no answers.
            resolve: see `DnsResolver`.
        """
        self.dns = DnsResolver(rng, self._on_answer, resolve)
        self._rng = rng
        self._on_change = on_change
        self._watches: dict[KubernetesSource, KubernetesWatch] = {}
        self._file = None if state_dir is None else StateFile(state_dir / FILE, StoredAnswers)
        self._stored = (self._file.load() if self._file is not None else None) or StoredAnswers()
        self._saving: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to resolve and to watch."""
        self._tasks = [
            keep_running("endpoints dns", self.dns.keep_resolving),
            keep_running("endpoints kubernetes", self._keep_watching),
        ]

    async def stop(self) -> None:
        """Stop resolving and watching; the answers are kept."""
        await cancel([*self._tasks, *((self._saving,) if self._saving is not None else ())])
        self._tasks = []
        self.dns.close()

    def expanded(self, entries: Iterable[Entry]) -> tuple[EndpointSpec, ...]:
        """Return the endpoints of the entries by the last answers; stop queries for names that no entry contains."""
        entries = list(entries)
        self.dns.use((entry.host for entry in entries if isinstance(entry, DnsEntry)), self._stored.addresses)
        self._watches = {
            entry.source: self._watches.get(entry.source) or self._new_watch(entry.source)
            for entry in entries
            if isinstance(entry, KubernetesEntry)
        }
        specs: list[EndpointSpec] = []
        for entry in entries:
            specs += self._endpoints(entry)
        return tuple(specs)

    def has_answered(self) -> bool:
        """Whether every directory was queried at least once, successfully or not."""
        watches = self._watches.values()
        return self.dns.has_resolved() and all(watch.has_answered for watch in watches)

    def status(self) -> dict[str, Any]:
        """Return the state of all directories, for the status page."""
        return {
            "dns": self.dns.status(),
            "kubernetes": {source.key: watch.status() for source, watch in self._watches.items()},
        }

    def ages_s(self) -> dict[str, float]:
        """Return the time (s) since the last answer for each name and source; infinite before the first answer."""
        return {
            f"{kind}:{name}": inf if state["age_s"] is None else state["age_s"]
            for kind, states in self.status().items()
            for name, state in states.items()
        }

    def _endpoints(self, entry: Entry) -> tuple[EndpointSpec, ...]:
        if isinstance(entry, DnsEntry):
            return entry.expanded(self.dns.answers[entry.host].addresses)
        if isinstance(entry, KubernetesEntry):
            return entry.expanded(self._watches[entry.source].servers)
        return (entry,)

    def _new_watch(self, source: KubernetesSource) -> KubernetesWatch:
        return KubernetesWatch(source, self._stored.answers.get(source.key, ()), self._rng)

    async def _keep_watching(self) -> None:
        running: dict[KubernetesWatch, asyncio.Task[None]] = {}
        try:
            while True:
                watches = list(self._watches.values())
                await cancel([running.pop(watch) for watch in list(running) if watch not in watches])
                for watch in watches:
                    if watch not in running:
                        running[watch] = keep_running("kubernetes watch", watch.run)
                changed = [watch for watch in watches if watch.refresh()]
                if changed:
                    self._on_answer()
                await sleep_until_tick(CHECK_S)
        finally:
            await cancel(running.values())

    def _on_answer(self) -> None:
        """Apply and store the current answers."""
        self._on_change()
        answers = {source.key: watch.servers for source, watch in self._watches.items()}
        addresses = {host: answer.addresses for host, answer in self.dns.answers.items()}
        self._stored = StoredAnswers(answers, addresses)
        if self._file is not None:
            self._saving = asyncio.create_task(self._file.save(self._stored))

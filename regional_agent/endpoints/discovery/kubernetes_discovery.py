"""The servers of one Service or InferencePool, by watching its objects.

For a Service, its EndpointSlices are watched. For an InferencePool, the pool and the pods that its selector matches are
watched; when the selector changes, the previous servers are kept until the pods of the new selector are listed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote

from regional_agent.background_tasks import cancel, keep_running
from regional_agent.endpoints.discovery.discovered_server import DiscoveredServer
from regional_agent.endpoints.discovery.kubernetes_api import KubernetesApi
from regional_agent.endpoints.discovery.kubernetes_entry import KubernetesSource
from regional_agent.endpoints.discovery.kubernetes_objects import (
    EndpointSlice,
    InferencePool,
    Listed,
    Pod,
    PoolSpec,
    servers_of_pods,
    servers_of_slices,
)
from regional_agent.endpoints.discovery.kubernetes_reflector import Collection, Reflector

SERVICE_LABEL: Final = "kubernetes.io/service-name"

MAX_POOL_PORTS: Final = 8
"""Maximum number of ports of a pool that are used; the API has the same limit."""


class KubernetesWatch:
    """Watches one source; `refresh` updates `servers` from the received objects."""

    def __init__(
        self,
        source: KubernetesSource,
        servers: tuple[DiscoveredServer, ...],
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a watch; `run` starts it.

        Args:
            servers: servers of an earlier run of the agent, used until the API server has listed the objects.
            rng: adds jitter to the waits between requests.
            clock: monotonic, in seconds.
        """
        self.servers = servers
        self._source = source
        self._rng = rng
        self._clock = clock
        self._api = KubernetesApi(source.api_server, Path(source.token_file), Path(source.ca_file))
        self._labels = dict(source.labels)
        self._changed = asyncio.Event()
        self._dirty = False
        self._object_problems: tuple[str, ...] = ()
        namespace = quote(source.namespace, safe="")
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._slices: Reflector[EndpointSlice] | None = None
        self._pool: Reflector[InferencePool] | None = None
        self._pods: Reflector[Pod] | None = None
        if source.service:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            selection = {"labelSelector": f"{SERVICE_LABEL}={source.service}"}
            self._slices = self._reflector(Collection(path, selection, EndpointSlice))
        else:
            path = f"/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools"
            selection = {"fieldSelector": f"metadata.name={source.inference_pool}"}
            self._pool = self._reflector(Collection(path, selection, InferencePool))

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            if self._slices is not None:
                await self._slices.run()
            elif self._pool is not None:
                await self._run_pool(self._pool)
        finally:
            self._api.close()

    def refresh(self) -> bool:
        """Update `servers`; returns whether they have changed."""
        if not self._dirty:
            return False
        self._dirty = False
        listed = self._listed()
        if listed is None:
            return False
        before, self.servers, self._object_problems = self.servers, listed.servers, listed.problems
        return before != self.servers

    @property
    def has_answered(self) -> bool:
        """Whether all objects were listed at least once, or a request failed."""
        reflectors = self._reflectors()
        return any(each.problem for each in reflectors) or all(each.synced for each in reflectors)

    def status(self) -> dict[str, Any]:
        """Return the number of servers, the age of the last response, and problems, for the status page."""
        answered = [each.heard_at for each in self._reflectors()]
        times = [at for at in answered if at is not None]
        age_s = round(self._clock() - min(times), 1) if times and len(times) == len(answered) else None
        problems = [each.problem for each in self._reflectors() if each.problem]
        if self._pool is not None and self._pool.synced and not self._pool.objects:
            problems.append(f"there is no InferencePool {self._source.inference_pool} in {self._source.namespace}")
        return {"servers": len(self.servers), "age_s": age_s, "problems": [*problems, *self._object_problems]}

    def _reflectors(self) -> list[Reflector[Any]]:
        return [each for each in (self._slices, self._pool, self._pods) if each is not None]

    def _listed(self) -> Listed | None:
        """Return the servers of the current objects; None until all objects have been listed."""
        if self._slices is not None:
            if not self._slices.synced:
                return None
            return servers_of_slices(self._slices.objects.values(), self._source.port, self._labels)
        spec = self._pool_spec()
        if spec is None:
            return Listed((), ()) if self._pool is not None and self._pool.synced else None
        if self._pods is None or not self._pods.synced:
            return None
        ports = [port.number for port in spec.target_ports][:MAX_POOL_PORTS]
        return servers_of_pods(self._pods.objects.values(), ports, self._labels)

    def _pool_spec(self) -> PoolSpec | None:
        pool = self._pool.objects.get(self._source.inference_pool) if self._pool is not None else None
        return None if pool is None else pool.spec

    async def _run_pool(self, pool: Reflector[InferencePool]) -> None:
        selector: dict[str, str] | None = None
        pool_task = keep_running("inference pool", pool.run)
        pod_tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                spec = self._pool_spec()
                wanted = None if spec is None else spec.selector.match_labels
                if wanted == selector:
                    continue
                await cancel(pod_tasks)
                selector, pod_tasks, self._pods = wanted, [], None
                if selector:
                    matching = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
                    self._pods = self._reflector(Collection(self._pods_path, {"labelSelector": matching}, Pod))
                    pod_tasks = [keep_running("pods of inference pool", self._pods.run)]
        finally:
            await cancel([pool_task, *pod_tasks])

    def _reflector(self, collection: Collection[Any]) -> Reflector[Any]:
        return Reflector(
            self._api,
            collection,
            self._mark_changed,
            rng=self._rng,
            had_objects=bool(self.servers),
            clock=self._clock,
        )

    def _mark_changed(self) -> None:
        self._dirty = True
        self._changed.set()

"""Copies of a sample of requests for a version that has no share yet; the responses are dropped.

A copy starts only while the new version has spare slots in this region, and few run at one time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import structlog
from msgspec import UNSET

from penstock.planning.plan import RegionPlan
from penstock.policy.kinds.model_rollouts import QualityHook, ShadowRequests
from penstock.policy.model_versions import WHOLE_PERCENT, is_drawn, rollout_of
from penstock.policy.policy import Policy
from regional_agent.background_tasks import cancel
from regional_agent.config.active_config import ActiveConfig
from regional_agent.jobs.internal_connection import ConnectionLost, InternalRequests, InternalResponse
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.authorization import Sender
from regional_agent.requests.client_request_reader import choice_of
from regional_agent.requests.model_name import can_replace_model
from regional_agent.requests.request_context import RequestContext
from regional_agent.versions.answer_pairs import AnswerPairs, PairOf
from regional_agent.versions.copied_request_path import CopyPath, CopyService

MAX_BODY_BYTES: Final = 256 * 1024
"""Maximum size (bytes) of the body of a request that is copied."""

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""Size (bytes) of a response after which its copy ends."""

log = structlog.get_logger()


class _Copy(NamedTuple):
    """A request that is copied."""

    name: str
    """The model that the client requested."""
    sender: Sender
    rules: ShadowRequests
    body: bytes


class RequestCopies:
    """The copies of one agent."""

    def __init__(self, proxy: Proxy, config: ActiveConfig, rng: Random, quality_token_file: Path | None = None) -> None:
        """Create copies of the requests of `proxy`; `rng` draws the sample.

        Args:
            quality_token_file: has the bearer token of quality hooks; None sends none.
        """
        self._config = config
        self._rng = rng
        self._local = proxy.router.local
        self._limits = proxy.limits
        self._new, self._old = (CopyPath.beside(proxy, rng, of_new=of_new) for of_new in (True, False))
        counted = proxy.recorder.versions.scored
        self.pairs = AnswerPairs(proxy.pools.endpoints, quality_token_file, proxy.metrics.quality, counted)
        """Pairs of answers that quality hooks score."""
        self._running: dict[str, set[asyncio.Task[Any]]] = {}
        """By the new version."""
        self._is_started = False

    def consider(self, plan: RegionPlan, context: RequestContext, peer_ip: str) -> None:
        """Copy a client's request if it is in the sample and there is room. The request is not delayed.

        Args:
            plan: the plan in force.
            peer_ip: the address of the TCP peer.
        """
        policy, name = context.policy, context.asked_for
        share = plan.version_share(policy, name)
        if share is None or self._rng.random() * WHOLE_PERCENT >= share.shadow_percent or context.model == share.to:
            return
        rollout = rollout_of(policy, name)
        if rollout is None or rollout.shadow is UNSET or not self._is_copied(policy, context):
            return
        running = self._running.setdefault(share.to, set())
        if len(running) >= rollout.shadow.max_concurrent or not self._has_room(share.to, rollout.shadow):
            return
        request, authorization = context.request, self._new.reader.authorization
        known = authorization.sender_of(policy, request, peer_ip)
        if not isinstance(known, Sender):
            return
        if not self._is_started:
            self._is_started = True
            for path in (self._new, self._old):
                path.proxy.start()
        copy = _Copy(name, Sender(known.principal, known.facts, known.masks), rollout.shadow, bytes(request.body))
        head = b"%b %b HTTP/1.1\r\nhost: penstock\r\ncontent-type: application/json\r\n" % (
            request.method,
            request.target,
        )
        quality = rollout.shadow.quality
        if quality is UNSET or not self._is_scored(quality, context):
            work = self._run(self._new, head, copy)
        else:
            pair = PairOf(name, context.model, share.to, quality)
            work = self._run_both(head, copy, pair)
        task: asyncio.Task[Any] = asyncio.create_task(work, name="copy of a request")
        running.add(task)
        task.add_done_callback(running.discard)

    async def stop(self) -> None:
        """Cancel the copies that run."""
        await cancel([task for running in self._running.values() for task in running])
        await self.pairs.stop()
        if self._is_started:
            for path in (self._new, self._old):
                path.proxy.stop()

    async def _run(self, path: CopyPath, head: bytes, copy: _Copy) -> InternalResponse | None:
        """Run a copy, and return its response; None if it is incomplete."""
        max_use = copy.rules.max_use_percent / WHOLE_PERCENT
        service = CopyService(path, self._config, copy.sender, copy.name, max_use)
        header = path.reader.authorization.location_header
        try:
            return await InternalRequests(service, self._limits, header, MAX_RESPONSE_BYTES).send(head, copy.body)
        except ConnectionLost:
            return None
        except Exception:
            log.exception("a copy of a request failed")
            return None

    async def _run_both(self, head: bytes, copy: _Copy, pair: PairOf) -> None:
        """Run a copy by each version, and let the quality hook score the answers."""
        new, old = await asyncio.gather(self._run(self._new, head, copy), self._run(self._old, head, copy))
        if new is not None and old is not None and new.status == old.status == 200:
            self.pairs.offer(pair, copy.body, old, new)

    def _is_scored(self, quality: QualityHook, context: RequestContext) -> bool:
        """Whether a copy is in the sample, and residency permits the hook to process the request."""
        if quality.region not in context.residency.permitted.regions:
            return False
        return self._rng.random() * WHOLE_PERCENT < quality.percent

    def _is_copied(self, policy: Policy, context: RequestContext) -> bool:
        """Whether a request can be copied: a complete body that refers to no object, for a version by its share."""
        request, route = context.request, context.request.route
        if route is None or not route.occupies_slot or len(request.body) > MAX_BODY_BYTES:
            return False
        if route.object_id or route.previous_object or route.client_object or not can_replace_model(request):
            return False
        if self._local.region not in context.residency.permitted.regions:
            return False
        rollout = rollout_of(policy, context.asked_for)
        assert rollout is not None
        return is_drawn(policy, rollout, context.principal.tenant, choice_of(request, rollout))

    def _has_room(self, model: str, copies: ShadowRequests) -> bool:
        pool = self._local.endpoints.pools[model]
        is_spare = pool.in_flight * WHOLE_PERCENT < copies.max_use_percent * pool.slots
        return pool.ready > 0 and is_spare and not self._local.queues.is_awaited(model)

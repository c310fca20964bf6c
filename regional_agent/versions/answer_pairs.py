"""Pairs of answers of two versions of a model, which the quality hook of the policy scores.

The scores are evidence about the new version. A hook that fails, is slow or answers nonsense is counted and logged, and
is no evidence: it delays a rollout, and rolls nothing back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import structlog

from adapters.files.plain_file import UnusableFile
from adapters.files.secret_file import read_secret
from penstock.http.header_rules import Header
from penstock.policy.kinds.model_rollouts import QualityHook
from penstock.rollout.quality_pair import InvalidScore, PairAnswer, encode_pair, score_of
from regional_agent.background_tasks import cancel
from regional_agent.jobs.internal_connection import InternalResponse
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError
from regional_agent.versions.quality_metrics import PairResult, QualityMetrics

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Maximum size (bytes) of an answer that is scored."""

MAX_WAITING: Final = 8
"""Maximum number of pairs that the hooks of an agent score at one time. Further pairs are dropped."""

MAX_SCORE_BYTES: Final = 64 * 1024

_JSON: Final = (b"content-type", b"application/json")

log = structlog.get_logger()


class PairOf(NamedTuple):
    """The versions of a pair, and what scores it."""

    name: str
    """The model that the client requested."""
    old: str
    to: str
    quality: QualityHook


class _NotScored(Exception):
    """The hook did not score a pair; the message states why."""


Count = Callable[[str, str, float | None], None]
"""Counts the score of a pair of a requested name and its new version; None if the hook failed."""


class AnswerPairs:
    """The pairs of one agent."""

    def __init__(
        self, connections: UpstreamPool, token_file: Path | None, metrics: QualityMetrics, count: Count
    ) -> None:
        """Create the pairs.

        Args:
            token_file: has the bearer token of the hooks; None sends none.
            count: counts the evidence.
        """
        self._connections = connections
        self._token_file = token_file
        self._metrics = metrics
        self._count = count
        self._running: set[asyncio.Task[None]] = set()

    def offer(self, pair: PairOf, request: bytes, old: InternalResponse, new: InternalResponse) -> None:
        """Send a pair to its hook, unless it is large or too many pairs wait. Does not block."""
        if len(self._running) >= MAX_WAITING or max(len(old.body), len(new.body)) > MAX_ANSWER_BYTES:
            self._metrics.counted(pair.to, PairResult.DROPPED)
            return
        task = asyncio.create_task(self._score(pair, request, old, new), name="score of a pair of answers")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Cancel the calls of hooks that run."""
        await cancel(list(self._running))

    async def _score(self, pair: PairOf, request: bytes, old: InternalResponse, new: InternalResponse) -> None:
        score: float | None = None
        try:
            score = await self._asked(pair.quality, encoded(pair, request, old, new))
        except _NotScored as error:
            log.warning("a pair of answers was not scored", model=pair.to, reason=str(error))
        except Exception:
            log.exception("a pair of answers was not scored", model=pair.to)
        self._metrics.counted(pair.to, PairResult.FAILED if score is None else PairResult.SCORED)
        self._count(pair.name, pair.to, score)

    async def _asked(self, quality: QualityHook, body: bytes) -> float:
        headers: tuple[Header, ...] = (_JSON,)
        if self._token_file is not None:
            try:
                token = await asyncio.to_thread(read_secret, self._token_file, "token of quality hooks", min_bytes=1)
            except UnusableFile as error:
                raise _NotScored(str(error)) from None
            headers = (_JSON, (b"authorization", b"Bearer " + token))
        timeout_s = quality.timeout_s
        try:
            address, path = Address.parse(quality.url), urlsplit(quality.url).path or "/"
            request = FetchRequest(path, headers, body)
            answer = await fetch(self._connections, address, request, timeout_s=timeout_s, limit_bytes=MAX_SCORE_BYTES)
            if answer.status != 200:
                raise _NotScored(f"the hook answers {answer.status}")
            return score_of(answer.body)
        except (UpstreamError, InvalidScore, ValueError) as error:
            raise _NotScored(str(error)) from None


def encoded(pair: PairOf, request: bytes, old: InternalResponse, new: InternalResponse) -> bytes:
    """Return the body of the request to the hook."""
    answers = {
        version: PairAnswer(answer.header(b"content-type"), answer.body.decode("utf-8", "replace"))
        for version, answer in (("old", old), ("new", new))
    }
    return encode_pair((pair.name, pair.old, pair.to), request, answers)

"""Which endpoints already hold part of a request: its conversation, the beginning of its prompt, or the model that it
asks for.

An endpoint with the beginning of a prompt in its cache is spared that part of prefill, and endpoint selection accounts
for it (`choose_endpoint`). A conversation that names itself stays with its endpoint only while the endpoint is a
bounded time behind the best. Unbounded affinity collapses under skew (Mirrokni, Thorup, Zadimoghaddam, "Consistent
Hashing with Bounded Loads", SODA 2018, for the same reason).

The agents of a region remember where they sent requests, in bounded memory and for a limited time, and exchange what is
new (`take_unpublished`, `receive`): keys are equal in all processes. Engines that publish the events of their KV caches
correct this estimate (`HeldPrefixes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from penstock.kv_cache.held_prefixes import HeldPrefixes

BLOCK_BYTES = 1024
"""Size of the blocks in which prompts are compared: about 256 tokens, a few of the blocks that engines share."""

MAX_BLOCKS = 64
"""Blocks of one prompt that are compared; beyond these, prompts rarely differ."""

MAX_KEYS = 65_536
"""Prefix blocks and sessions that one agent remembers; the least recently used is evicted first."""

NOTED_S = 1.0
"""A holder noted less than this time (s) ago is not noted again for the same block: entries are kept for minutes."""

MAX_HOLDERS = 16
"""Endpoints remembered for one block or session; the latest are kept."""

MAX_UNPUBLISHED = 4096
"""Keys that wait to be published to the other agents; while there are as many, no more are added."""

PUBLISHED_AGAIN_S = 60
"""A holder that is noted again is published again once in this time (s), so that the other agents' notes stay young."""

HELD_S = 300.0
"""After this time (s) since it was last sent to an endpoint, a prefix or session has likely left the endpoint's
cache."""

STORING_S = 2.0
"""Time (s) after a request was sent to an endpoint for which events that report its prefix missing are too early."""

SESSION_GAP_S = 0.5
"""How much later (s) than the best the endpoint that had the session's previous request may complete the next one."""

MODEL_GAP_S = 0.5
"""The same for an endpoint whose last request was for this model, where endpoints serve several models."""

SESSION_BIT = 1 << 32

EVICTION_PRESSURE = 0.5
"""An endpoint at or above this pressure (see `engine_signals.pressure`: KV cache used to 95 %, or half as many requests
queued in it as it runs) evicts what it holds, so nothing there counts as held."""


class AffinityHint(NamedTuple):
    """What some endpoints hold of a request, by endpoint name."""

    blocks: Mapping[str, int]
    """Leading blocks of its prompt."""
    gap_s: float
    """How much later (s) than the best such an endpoint may complete the request and still be chosen, beyond what the
    blocks spare."""


NOTHING = AffinityHint({}, 0.0)


def prefix_keys(scope: str, prompt: memoryview) -> list[int]:
    """A key for each whole leading block of a prompt: the CRC-32 of the scope and of all bytes up to the block's end.

    Equal beginnings have equal keys. Of MAX_KEYS others one has the same key with a probability of 1 in 65,536; the
    request then merely goes to an endpoint that holds nothing of it.

    Args:
        scope: tenant and model; neither shares prompts with another.
        prompt: the text as received, JSON included; the next turn of a conversation begins with the same bytes.
    """
    keys = []
    key = crc32(scope.encode())
    for end in range(BLOCK_BYTES, min(len(prompt), BLOCK_BYTES * MAX_BLOCKS) + 1, BLOCK_BYTES):
        key = crc32(prompt[end - BLOCK_BYTES : end], key)
        keys.append(key)
    return keys


def session_key(scope: str, session: bytes) -> int:
    """The key of a conversation that its client names; differs from that of every prefix."""
    return crc32(session, crc32(scope.encode())) | SESSION_BIT


class AffinityIndex:
    """Where recent requests went, by what they have in common."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        """Create an empty record of at most `most` keys."""
        self.publishes = False
        """Whether this agent exchanges its notes with the other agents of its region."""
        self.exact = HeldPrefixes()
        """What endpoints hold by the events of their engines, where there are any."""
        self._most = most
        self._unpublished: dict[str, list[int]] = {}
        self._unpublished_keys = 0
        self._holders: dict[int, tuple[float, tuple[str, ...]]] = {}
        self._models: dict[str, tuple[str, float]] = {}
        """The model that each endpoint ran last and when, the oldest first."""

    def __len__(self) -> int:
        return len(self._holders)

    def sent(self, endpoint: str, prefix: Iterable[int], session: int | None, model: str, now: float) -> None:
        """Record that a request went to an endpoint."""
        holders, renewed_before = self._holders, now - NOTED_S
        for key in prefix:
            found = holders.get(key)
            if found is None or found[0] <= renewed_before or endpoint not in found[1]:
                self._note(key, endpoint, now)
        if session is not None:
            self._note(session, endpoint, now)
        models = self._models
        models.pop(endpoint, None)
        models[endpoint] = (model, now)
        oldest = next(iter(models))
        if now - models[oldest][1] >= HELD_S:
            del models[oldest]

    def take_unpublished(self) -> dict[str, list[int]]:
        """The keys noted since the last call that other agents do not have yet, by endpoint."""
        taken, self._unpublished, self._unpublished_keys = self._unpublished, {}, 0
        return taken

    def receive(self, endpoint: str, keys: Iterable[int], at: float) -> None:
        """Note what another agent sent to an endpoint at `at` (monotonic, in seconds)."""
        holders = self._holders
        for key in keys:
            found = holders.get(key)
            if found is None or found[0] < at:
                self._hold(key, endpoint, at)
            elif endpoint not in found[1]:
                self._hold(key, endpoint, found[0])

    def held(self, prefix: list[int], session: int | None, now: float) -> AffinityHint:
        """Which endpoints hold something of a request, and how many blocks of its prompt."""
        blocks = self._blocks(prefix, now)
        names = self._names(session, now) if session is not None else ()
        if names:
            blocks.setdefault(names[0], 0)
            return AffinityHint(blocks, SESSION_GAP_S)
        return AffinityHint(blocks, 0.0) if blocks else NOTHING

    def running(self, model: str, now: float) -> list[str]:
        """Endpoints whose last request, less than HELD_S ago, was for this model: the model is loaded there."""
        return [name for name, (last, at) in self._models.items() if last == model and now - at < HELD_S]

    def _blocks(self, prefix: list[int], now: float) -> dict[str, int]:
        """Leading blocks that each endpoint holds. Mostly the same endpoints hold all blocks, so only changes cost
        time.
        """
        if self.exact.endpoints:
            return self._confirmed_blocks(prefix, now)
        blocks: dict[str, int] = {}
        holding: tuple[str, ...] = ()
        last: tuple[str, ...] | None = None
        holders, oldest, count = self._holders, now - HELD_S, 0
        for key in prefix:
            found = holders.get(key)
            names = found[1] if found is not None and found[0] > oldest else ()
            if names != last:
                before, holding = holding, names if last is None else tuple([name for name in holding if name in names])
                last = names
                for name in before:
                    if name not in holding:
                        blocks[name] = count
                if not holding:
                    break
            count += 1
        return blocks | dict.fromkeys(holding, count)

    def _confirmed_blocks(self, prefix: list[int], now: float) -> dict[str, int]:
        """As `_blocks`, with the events of engines: they end what was evicted, and prolong what is still held."""
        blocks: dict[str, int] = {}
        holds, oldest, storing = self.exact.holds, now - HELD_S, now - STORING_S
        holding: tuple[str, ...] | None = None
        for count, key in enumerate(prefix, 1):
            at, names = self._holders.get(key, (0.0, ()))
            candidates = names if holding is None else [name for name in holding if name in names]
            kept = []
            for name in candidates:
                held = holds(name, key)
                if held or at > (oldest if held is None else storing if name == names[0] else now):
                    kept.append(name)
                    blocks[name] = count
            if not kept:
                break
            holding = tuple(kept)
        return blocks

    def _names(self, key: int, now: float) -> tuple[str, ...]:
        found = self._holders.get(key)
        return found[1] if found is not None and found[0] > now - HELD_S else ()

    def _note(self, key: int, endpoint: str, now: float) -> None:
        if self.publishes and self._unpublished_keys < MAX_UNPUBLISHED:
            found = self._holders.get(key)
            if found is None or endpoint not in found[1] or found[0] // PUBLISHED_AGAIN_S != now // PUBLISHED_AGAIN_S:
                self._unpublished.setdefault(endpoint, []).append(key)
                self._unpublished_keys += 1
        self._hold(key, endpoint, now)

    def _hold(self, key: int, endpoint: str, now: float) -> None:
        found = self._holders.pop(key, None)
        if found is None:
            names: tuple[str, ...] = (endpoint,)
        elif found[1][0] == endpoint:
            names = found[1]
        else:
            names = (endpoint, *(name for name in found[1] if name != endpoint))[:MAX_HOLDERS]
        self._holders[key] = (now, names)
        if len(self._holders) > self._most:
            del self._holders[next(iter(self._holders))]

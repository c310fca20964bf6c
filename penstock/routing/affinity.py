"""Records which endpoints hold part of a request: its conversation, the beginning of its prompt, or its model.

An endpoint with the beginning of a prompt in its cache skips that part of prefill, which endpoint selection takes into
account (`choose_endpoint`). A conversation with a session name stays at its endpoint only while the endpoint would
complete the request at most a bounded time later than the best endpoint. Unbounded affinity would overload endpoints
under skew (compare Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018).

The agents of a region record the endpoints of their requests, in bounded memory and for a limited time, and exchange
new records (`take_unpublished`, `receive`); keys are equal in all processes. The KV cache events of engines that
publish them correct this estimate (`HeldPrefixes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from penstock.kv_cache.held_prefixes import HeldPrefixes

BLOCK_BYTES = 1024
"""Size of the blocks in which prompts are compared: about 256 tokens, a few of the blocks that engines share."""

MAX_BLOCKS = 64
"""Number of leading blocks of a prompt that have a key each."""

LONG_BLOCKS = 4
"""Number of blocks of each further key: the prompts of agents, of up to 100,000 tokens, repeat almost all of the last
one. What has no key would count as a prompt to compute, at the endpoint that holds it, too."""

MAX_LONG_KEYS = 96
"""Maximum number of further keys: together 448 kB."""

MAX_KEYS = 65_536
"""Maximum number of prefix blocks and sessions that one agent records; the least recently used is evicted first."""

NOTED_S = 1.0
"""Minimum time (s) between two records of one holder for the same block; records are kept for minutes."""

MAX_HOLDERS = 16
"""Maximum number of endpoints recorded for one block or session; the latest are kept."""

MAX_UNPUBLISHED = 4096
"""Maximum number of keys that wait for publication to the other agents; further keys are not published."""

PUBLISHED_AGAIN_S = 60
"""Interval (s) at which a holder that is recorded again is published again, so that other agents keep its record."""

HELD_S = 300.0
"""Time (s) after the last request to an endpoint for which its prefix and session count as held in the endpoint's
cache."""

STORING_S = 2.0
"""Time (s) after sending a request to an endpoint during which its prefix counts as held even if engine events do not
report the prefix: the engine may not have stored it yet."""

SESSION_GAP_S = 0.5
"""Maximum additional time (s), compared with the best endpoint, for a request at the endpoint of its session."""

MODEL_GAP_S = 0.5
"""Maximum additional time (s), compared with the best endpoint, for a request at an endpoint whose last request was for
the same model, in pools whose endpoints serve several models."""

LONG_BYTES = BLOCK_BYTES * LONG_BLOCKS

SESSION_BIT = 1 << 32

SCOPE_SHIFT = 33
"""Bits of a key below the tag of its scope: a checksum, and whether the key is that of a session."""

EVICTION_PRESSURE = 0.5
"""Pressure (see `engine_signals.pressure`: a KV cache used to 95 %, or half as many requests queued as slots) from
which on an endpoint is assumed to evict its cache, so that nothing counts as held."""


class AffinityHint(NamedTuple):
    """The endpoints that hold a part of a request."""

    blocks: Mapping[str, int]
    """Number of leading blocks of the prompt that an endpoint holds, by endpoint name."""
    gap_s: float
    """Maximum additional time (s), compared with the best endpoint and beyond the time that the blocks spare, at which
    such an endpoint is still chosen."""


NOTHING = AffinityHint({}, 0.0)


def prefix_keys(scope: str, prompt: memoryview) -> list[int]:
    """A key for each whole leading block of a prompt: the CRC-32 of the scope and of all bytes up to the block's end.

    After MAX_BLOCKS blocks, there is one key for LONG_BLOCKS of them.

    Equal beginnings have equal keys. The probability that any of MAX_KEYS other beginnings has the same key is 1 in
    65,536; the request may then be sent to an endpoint that holds no part of it. A tenant can write prompts with equal
    checksums, but only within its own scope, whose tag is in each key.

    Args:
        scope: tenant and model; prompts are not shared between tenants or models.
        prompt: the text as received, JSON included; the next turn of a conversation begins with the same bytes.
    """
    keys = []
    key = crc32(scope.encode())
    tag, length = scope_tag(key), len(prompt)
    for end in range(BLOCK_BYTES, min(length, BLOCK_BYTES * MAX_BLOCKS) + 1, BLOCK_BYTES):
        key = crc32(prompt[end - BLOCK_BYTES : end], key)
        keys.append(key | tag)
    end = BLOCK_BYTES * MAX_BLOCKS + LONG_BYTES
    while end <= length and len(keys) < MAX_BLOCKS + MAX_LONG_KEYS:
        key = crc32(prompt[end - LONG_BYTES : end], key)
        keys.append(key | tag)
        end += LONG_BYTES
    return keys


def blocks_of(keys: int) -> int:
    """Return the number of blocks that the first `keys` keys of a prompt stand for."""
    return keys if keys <= MAX_BLOCKS else MAX_BLOCKS + (keys - MAX_BLOCKS) * LONG_BLOCKS


def session_key(scope: str, session: bytes) -> int:
    """The key of a conversation that its client names; differs from the key of every prefix."""
    key = crc32(scope.encode())
    return crc32(session, key) | SESSION_BIT | scope_tag(key)


def scope_tag(checksum: int) -> int:
    """The part of a key that differs between tenants and models, whatever their clients send, by the scope's CRC-32.

    29 bits, so that a key is less than 2^62: compiled code handles such numbers without an object.
    """
    return checksum >> 3 << SCOPE_SHIFT


class AffinityIndex:
    """The endpoints of recent requests, by prefix block, session and model."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        """Create an empty index of at most `most` keys."""
        self.publishes = False
        """Whether this agent exchanges its records with the other agents of its region."""
        self.exact = HeldPrefixes()
        """Prefixes that endpoints hold according to the KV cache events of their engines; empty without events."""
        self._most = most
        self._unpublished: dict[str, list[int]] = {}
        self._unpublished_keys = 0
        self._holders: dict[int, tuple[float, tuple[str, ...]]] = {}
        self._models: dict[str, tuple[str, float]] = {}
        """The model of the last request of each endpoint and its time (s), the oldest first."""

    def __len__(self) -> int:
        return len(self._holders)

    def sent(self, endpoint: str, prefix: Iterable[int], session: int | None, model: str, now: float) -> None:
        """Record that a request was sent to an endpoint at `now` (s, monotonic)."""
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
        """Return the keys recorded since the last call that other agents do not have yet, by endpoint."""
        taken, self._unpublished, self._unpublished_keys = self._unpublished, {}, 0
        return taken

    def receive(self, endpoint: str, keys: Iterable[int], at: float) -> None:
        """Record the keys of requests that another agent sent to an endpoint at `at` (s, monotonic)."""
        holders = self._holders
        for key in keys:
            found = holders.get(key)
            if found is None or found[0] < at:
                self._hold(key, endpoint, at)
            elif endpoint not in found[1] and len(found[1]) < MAX_HOLDERS:
                # An older record comes last: a session stays at the endpoint of its latest request.
                holders[key] = (found[0], (*found[1], endpoint))

    def held(self, prefix: list[int], session: int | None, now: float) -> AffinityHint:
        """The endpoints that hold a part of a request, with the number of leading blocks of its prompt."""
        blocks = self._blocks(prefix, now)
        names = self._names(session, now) if session is not None else ()
        if names:
            blocks.setdefault(names[0], 0)
            return AffinityHint(blocks, SESSION_GAP_S)
        return AffinityHint(blocks, 0.0) if blocks else NOTHING

    def holders(self, key: int, now: float) -> tuple[str, ...]:
        """The endpoints that hold the beginning of a prompt with this key, by the records of the last HELD_S."""
        return self._names(key, now)

    def running(self, model: str, now: float) -> list[str]:
        """Endpoints whose last request, less than HELD_S ago, was for this model: the model is loaded there."""
        return [name for name, (last, at) in self._models.items() if last == model and now - at < HELD_S]

    def _blocks(self, prefix: list[int], now: float) -> dict[str, int]:
        """Number of leading blocks that each endpoint holds. Fast while consecutive blocks have the same holders."""
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
                        blocks[name] = blocks_of(count)
                if not holding:
                    break
            count += 1
        return blocks | dict.fromkeys(holding, blocks_of(count))

    def _confirmed_blocks(self, prefix: list[int], now: float) -> dict[str, int]:
        """Like `_blocks`, with engine events: evicted blocks do not count, and held blocks count beyond HELD_S."""
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
                    blocks[name] = blocks_of(count)
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

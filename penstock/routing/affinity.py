"""Which endpoints know a request already: its conversation, the beginning of its prompt, or the model it asks for.

An endpoint that has a prompt's beginning in its cache is spared that part of prefill, and the chooser reckons with it.
Beyond that nobody is kept waiting for the sake of a cache: a request stays with the endpoint that holds something of it
only until that one is a bounded time behind the best (`who.choose_endpoint`). Unbounded affinity collapses under skew
(Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018, for the same reason).

What is held is not asked of engines but remembered from where requests were sent: bounded, and forgotten with time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

BLOCK_BYTES = 1024
"""Prompts are compared in blocks of this size: about 256 tokens, a few of the blocks that engines share."""

MAX_BLOCKS = 64
"""Blocks of one prompt that are looked at; what is shared beyond is rarely told apart by more."""

MAX_KEYS = 65_536
"""Prefix blocks and sessions that are remembered by one agent; the least recently used goes first."""

NOTED_S = 1.0
"""A block whose holder was noted so lately (s) is not noted again for it: what is remembered is to be minutes."""

MAX_HOLDERS = 4
"""Endpoints that are remembered for one of them; the latest are."""

HELD_S = 300.0
"""A prefix or session that was last sent to an endpoint so long ago (s) has likely left its cache."""

PREFIX_GAP_S = 0.25
"""How much later (s) than at the best an endpoint may be done that holds a part of the prompt, besides what the part
spares: for the sake of the next turn of the same conversation."""

SESSION_GAP_S = 0.5
"""The same for the endpoint that had the session's request before."""

MODEL_GAP_S = 0.5
"""The same for an endpoint whose last request was for this model, among those that serve several."""

KEEPS_UNDER = 0.5
"""An endpoint under this much pressure (see `engine_signals.pressure`: KV cache used to 95 %, or half as many requests
queued in it as it runs) gives up what it holds: nothing there counts as kept."""


class Held(NamedTuple):
    """What is known of a request at some endpoints, by name."""

    blocks: Mapping[str, int]
    """How many leading blocks of its prompt."""
    gap_s: float
    """How much later than at the best such an endpoint may be done and still get it, in seconds."""


NOTHING = Held({}, 0.0)


def prefix_keys(scope: str, prompt: memoryview) -> list[int]:
    """A key for each whole leading block of a prompt; equal beginnings have equal keys, within one process.

    Args:
        scope: tenant and model: neither knows of another's prompts.
        prompt: the text as it came, JSON and all; a conversation's next turn begins with the same bytes.
    """
    keys = []
    key = hash(scope)
    for end in range(BLOCK_BYTES, min(len(prompt), BLOCK_BYTES * MAX_BLOCKS) + 1, BLOCK_BYTES):
        key = hash((key, prompt[end - BLOCK_BYTES : end].tobytes()))
        keys.append(key)
    return keys


def session_key(scope: str, session: bytes) -> int:
    """The key of a conversation that its client names."""
    return hash((scope, "session", session))


class Holdings:
    """Where requests went lately, by what they have in common."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        """Nothing has been sent anywhere; remembers at most so many keys."""
        self._most = most
        self._holders: dict[int, tuple[float, tuple[str, ...]]] = {}
        self._models: dict[str, tuple[str, float]] = {}
        """Of each endpoint, the model that it ran last and when, by how long ago that was."""

    def __len__(self) -> int:
        return len(self._holders)

    def sent(self, endpoint: str, prefix: Iterable[int], session: int | None, model: str, now: float) -> None:
        """A request has gone to an endpoint."""
        holders, lately = self._holders, now - NOTED_S
        for key in prefix:
            found = holders.get(key)
            if found is None or found[0] <= lately or endpoint not in found[1]:
                self._note(key, endpoint, now)
        if session is not None:
            self._note(session, endpoint, now)
        models = self._models
        models.pop(endpoint, None)
        models[endpoint] = (model, now)
        oldest = next(iter(models))
        if now - models[oldest][1] >= HELD_S:
            del models[oldest]

    def held(self, prefix: list[int], session: int | None, now: float) -> Held:
        """Which endpoints hold something of a request, and how much of its prompt."""
        blocks = self._blocks(prefix, now)
        names = self._names(session, now) if session is not None else ()
        if names:
            blocks.setdefault(names[0], 0)
            return Held(blocks, SESSION_GAP_S)
        return Held(blocks, PREFIX_GAP_S) if blocks else NOTHING

    def running(self, model: str, now: float) -> list[str]:
        """Endpoints whose last request, not long ago, was for this model: it is loaded there."""
        return [name for name, (last, at) in self._models.items() if last == model and now - at < HELD_S]

    def _blocks(self, prefix: list[int], now: float) -> dict[str, int]:
        """How many leading blocks each endpoint holds. Mostly the same ones hold all of them, so only changes cost."""
        blocks: dict[str, int] = {}
        holding: tuple[str, ...] = ()
        last: tuple[str, ...] | None = None
        holders, oldest, count = self._holders, now - HELD_S, 0
        for key in prefix:
            found = holders.get(key)
            names = found[1] if found is not None and found[0] > oldest else ()
            if names != last:
                before, holding = holding, names if last is None else tuple([one for one in holding if one in names])
                last = names
                for name in before:
                    if name not in holding:
                        blocks[name] = count
                if not holding:
                    break
            count += 1
        return blocks | dict.fromkeys(holding, count)

    def _names(self, key: int, now: float) -> tuple[str, ...]:
        found = self._holders.get(key)
        return found[1] if found is not None and found[0] > now - HELD_S else ()

    def _note(self, key: int, endpoint: str, now: float) -> None:
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

"""The token blocks in the KV cache of one endpoint, according to the events that its engine publishes.

An engine names blocks by hashes that differ between processes and versions. A chain key instead identifies a block by
its tokens and all tokens before it, so that it is equal for all endpoints with the same tokenizer and block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.kv_cache.kv_events import DEVICE, AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KvEvent

MAX_HELD = 65_536
"""Maximum number of blocks of one endpoint that are recorded (about 14 MB): a million tokens in blocks of 16. Prefixes
in other blocks are estimated."""

_ROOT = 0


def chain_keys(tokens: Sequence[int], block_size: int) -> list[int]:
    """Return the chain key of each whole block of a prompt without adapter, image or salt."""
    keys, parent = [], _ROOT
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = _chain_key(parent, tokens[end - block_size : end], None)
        keys.append(parent)
    return keys


def _chain_key(parent: int, tokens: Sequence[int], extra: str | None) -> int:
    # Hashes of integers and of tuples of integers are equal in all processes. Hashes of texts are not, which has no
    # effect, because a prompt with extra keys is never looked up.
    return hash((parent, tuple(tokens)) if extra is None else (parent, tuple(tokens), extra))


class HeldBlocks:
    """The blocks that one endpoint holds."""

    __slots__ = ("_gone", "_held", "_keys", "_most", "block_size", "complete", "removed", "stored", "unknown")

    def __init__(self, most: int = MAX_HELD) -> None:
        """Create the record of an empty cache, with at most `most` blocks."""
        self.block_size = 0
        """Tokens of a block; 0 before the first block is stored."""
        self.complete = True
        """Whether the record contains every block in the cache."""
        self.stored = 0
        """Number of blocks that were stored since the start."""
        self.removed = 0
        """Number of recorded blocks that were evicted or cleared since the start."""
        self.unknown = 0
        """Number of stored blocks that were not recorded: their parent is not recorded, or the maximum was reached."""
        self._most = most
        self._keys: dict[tuple[BlockHash, int | None], int] = {}
        """Chain key, by the engine's name of the block and the group of layers."""
        self._held: dict[int, int] = {}
        """Number of groups of layers or names under which a block is held, by its chain key."""
        self._gone: dict[int, None] = {}
        """Chain keys of blocks that were removed while the record is not complete, the latest last."""

    def __len__(self) -> int:
        return len(self._keys)

    def holds(self, chain_key: int) -> bool | None:
        """Whether a block is held; None if unknown."""
        if chain_key in self._held:
            return True
        return False if self.complete or chain_key in self._gone else None

    def names(self) -> set[BlockHash]:
        """Return the engine's names of all blocks held."""
        return {name for name, _ in self._keys}

    def apply(self, events: Iterable[KvEvent]) -> None:
        """Apply events in the order in which they happened."""
        for event in events:
            if isinstance(event, BlockStored):
                if event.medium in DEVICE:
                    self._store(event)
            elif isinstance(event, BlockRemoved):
                if event.medium in DEVICE:
                    for name in event.block_hashes:
                        self._remove((name, event.group_idx))
            elif isinstance(event, AllBlocksCleared):
                self.removed += len(self._keys)
                self.reset(complete=True)

    def reset(self, *, complete: bool) -> None:
        """Remove all blocks from the record: the cache is empty (`complete`), or its content is unknown."""
        self._keys.clear()
        self._held.clear()
        self._gone.clear()
        self.complete = complete

    def _store(self, event: BlockStored) -> None:
        size, group = event.block_size, event.group_idx
        self.block_size = size
        self.stored += len(event.block_hashes)
        parent: int | None = _ROOT
        if event.parent_block_hash is not None:
            parent = self._keys.get((event.parent_block_hash, group))
        adapter = event.lora_name if event.lora_name is not None else event.lora_id
        for index, name in enumerate(event.block_hashes):
            if parent is None or ((name, group) not in self._keys and len(self._keys) >= self._most):
                self.unknown += len(event.block_hashes) - index
                self.complete = False
                return
            extra = event.extra_keys[index] if event.extra_keys is not None else None
            text = None if adapter is None and extra is None else repr((adapter, extra))
            parent = _chain_key(parent, event.token_ids[index * size : (index + 1) * size], text)
            self._forget((name, group))
            self._keys[name, group] = parent
            self._held[parent] = self._held.get(parent, 0) + 1
            self._gone.pop(parent, None)

    def _remove(self, name: tuple[BlockHash, int | None]) -> None:
        if self._forget(name):
            self.removed += 1

    def _forget(self, name: tuple[BlockHash, int | None]) -> bool:
        key = self._keys.pop(name, None)
        if key is None:
            return False
        left = self._held[key] - 1
        if left:
            self._held[key] = left
        else:
            del self._held[key]
            if not self.complete:
                self._gone[key] = None
                if len(self._gone) > self._most:
                    del self._gone[next(iter(self._gone))]
        return True

"""The prefixes that an endpoint still holds, by the KV events of its engine.

Events refer to tokens, but prefixes are keyed by their text (`affinity.prefix_keys`). Once the tokens of a prompt are
known, each of its prefix keys is linked to the last block of tokens within the prefix: an endpoint holds the prefix as
long as it holds that block. Keys are per tenant, and only endpoints that served requests of the same tenant count
(`AffinityIndex`), so that the cache content of one tenant does not affect the routing of another tenant.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.kv_cache.held_blocks import HeldBlocks, chain_keys

MAX_LINKS = 65_536
"""Maximum number of prefix keys that are linked to token blocks; the oldest are dropped first."""


class HeldPrefixes:
    """The endpoints whose events are current, and the token blocks of prefixes."""

    def __init__(self, most: int = MAX_LINKS) -> None:
        """Create a record of at most `most` prefix keys, without endpoints."""
        self.endpoints: dict[str, HeldBlocks] = {}
        """Blocks of the endpoints whose events are current, by name. The estimate applies to all other endpoints."""
        self._most = most
        self._links: dict[int, tuple[int, int]] = {}
        """Block size and chain key by prefix key."""

    def __len__(self) -> int:
        return len(self._links)

    def is_linked(self, prefix: Sequence[int]) -> bool:
        """Whether the tokens of a prefix are known."""
        return prefix[-1] in self._links

    def link(
        self, prefix: Sequence[int], prefix_bytes: int, prompt_bytes: int, tokens: Sequence[int], block_size: int
    ) -> None:
        """Record the tokens of a prompt.

        The position of a token in the text is estimated in proportion, so a link may be off by one or two token blocks.

        Args:
            prefix: keys of the leading blocks of text of the prompt.
            prefix_bytes: length of the text of one key.
            prompt_bytes: length of the whole text.
            tokens: tokens of the whole prompt.
            block_size: tokens of a block of the engine.
        """
        chain = chain_keys(tokens, block_size)
        for index, key in enumerate(prefix, 1):
            blocks = min(len(tokens) * prefix_bytes * index // prompt_bytes // block_size, len(chain))
            if blocks:
                self._links.pop(key, None)
                self._links[key] = block_size, chain[blocks - 1]
                if len(self._links) > self._most:
                    del self._links[next(iter(self._links))]

    def holds(self, endpoint: str, key: int) -> bool | None:
        """Whether an endpoint holds a prefix; None if only the estimate applies."""
        blocks = self.endpoints.get(endpoint)
        if blocks is None:
            return None
        link = self._links.get(key)
        if link is None or link[0] != blocks.block_size:
            return None
        return blocks.holds(link[1])

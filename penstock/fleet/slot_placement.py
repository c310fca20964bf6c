"""Places work on capacity groups that several models share, so that no group receives more than its capacity.

The work of one model may be in any group that serves the model, and moves to another group if that makes room. The
total that fits is a maximum flow, found with the shortest augmenting paths of Edmonds and Karp (Theoretical
improvements in algorithmic efficiency for network flow problems, J. ACM 19, 1972).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

NEGLIGIBLE = 1e-9
"""Amounts below this are rounding errors."""

K = TypeVar("K", bound=Hashable)


class SlotPlacement(Generic[K]):
    """Free capacity and placed work by group, in one arbitrary unit for all groups and work."""

    def __init__(self, free: Sequence[float], draws: Mapping[K, Sequence[int]]) -> None:
        """Create a placement without work.

        Args:
            free: capacity by group.
            draws: the groups of each pool, in the order in which they are filled.
        """
        self._free = list(free)
        self._draws = draws
        self._placed: dict[int, dict[K, float]] = {}
        """Work of each pool, by group; only of groups that belong to several pools."""
        users: dict[int, int] = {}
        for groups in draws.values():
            for group in groups:
                users[group] = users.get(group, 0) + 1
        self._shared = frozenset(group for group, count in users.items() if count > 1)

    def copy(self) -> SlotPlacement[K]:
        """Return a placement with the same work, which changes independently of this placement."""
        copied: SlotPlacement[K] = SlotPlacement.__new__(SlotPlacement)
        copied._free, copied._draws, copied._shared = self._free.copy(), self._draws, self._shared
        copied._placed = {group: work.copy() for group, work in self._placed.items()}
        return copied

    def free(self, group: int) -> float:
        """Return the free capacity of a group."""
        return self._free[group]

    def add_capacity(self, more: Sequence[float]) -> None:
        """Add capacity to every group."""
        self._free = [free + amount for free, amount in zip(self._free, more, strict=True)]

    def place(self, pool: K, amount: float) -> float:
        """Place up to `amount` of a pool's work. Returns the part that fits."""
        groups = self._draws[pool]
        left = amount
        for group in groups:
            taken = min(left, self._free[group])
            if taken > 0.0:
                self._put(pool, group, taken)
                left -= taken
            if left <= 0.0:
                return amount
        if not self._shared.isdisjoint(groups):
            while left > NEGLIGIBLE:
                moved = self._augment(pool, left)
                if moved <= NEGLIGIBLE:
                    break
                left -= moved
        return amount - left

    def _put(self, pool: K, group: int, amount: float) -> None:
        self._free[group] -= amount
        self._note(pool, group, amount)

    def _note(self, pool: K, group: int, amount: float) -> None:
        if group in self._shared:
            work = self._placed.setdefault(group, {})
            work[pool] = work.get(pool, 0.0) + amount

    def _augment(self, pool: K, wanted: float) -> float:
        """Move other pools' work along the shortest path that makes room for this pool. Returns the amount placed."""
        from_pool: dict[int, K] = dict.fromkeys(self._draws[pool], pool)
        """For each group reached: the pool whose work would move into the group."""
        from_group: dict[K, int] = {}
        """For each pool reached: the group that work of the pool would leave."""
        queue = list(from_pool)
        for group in queue:
            if self._free[group] > NEGLIGIBLE:
                return self._shift(pool, group, wanted, from_pool, from_group)
            for other, amount in self._placed.get(group, {}).items():
                if amount > NEGLIGIBLE and other != pool and other not in from_group:
                    from_group[other] = group
                    for target in self._draws[other]:
                        if target not in from_pool:
                            from_pool[target] = other
                            queue.append(target)
        return 0.0

    def _shift(
        self, pool: K, target: int, wanted: float, from_pool: Mapping[int, K], from_group: Mapping[K, int]
    ) -> float:
        amount, group = min(wanted, self._free[target]), target
        path = []
        while (mover := from_pool[group]) != pool:
            source = from_group[mover]
            amount = min(amount, self._placed[source][mover])
            path.append((mover, source, group))
            group = source
        self._free[target] -= amount
        for mover, source, into in path:
            self._note(mover, source, -amount)
            self._note(mover, into, amount)
        self._note(pool, group, amount)
        return amount

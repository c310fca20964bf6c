"""One model's demand as flows from keys to pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.planning.change_limit import normalised
from penstock.planning.linear_program.arrays import Floats, Ints, summed
from penstock.planning.linear_program.problem import Problem
from penstock.planning.share_moves import Key


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Flows by (key, pool), each pair at most once."""

    problem: Problem
    key: Ints
    pool: Ints
    per_s: Floats
    """By pair, in requests per second."""

    @classmethod
    def of_shares(cls, problem: Problem, shares: Mapping[Key, Mapping[str, float]]) -> Flows:
        """The flows of share tables; keys without a table and regions without a pool are omitted."""
        place = {name: at for at, name in enumerate(problem.shape.pools)}
        rows = [
            (at, place[server], problem.demand[at] * share)
            for at, key in enumerate(problem.shape.keys)
            for server, share in shares.get(key, {}).items()
            if server in place
        ]
        key, pool, per_s = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(
            problem, np.array(key, dtype=np.intp), np.array(pool, dtype=np.intp), np.array(per_s, dtype=np.float64)
        )

    def load_per_s(self) -> Floats:
        """By pool: the requests per second that it receives."""
        return summed(self.pool, self.per_s, len(self.problem.shape.pools))

    def by_group(self) -> Floats:
        """By (group, pool), in requests per second."""
        groups, pools = self.problem.shape.permitted.shape
        at = self.problem.shape.group_of[self.key] * pools + self.pool
        return summed(at, self.per_s, groups * pools).reshape(groups, pools)

    def shares(self) -> dict[Key, dict[str, float]]:
        """Share tables by key, each summing to 1; keys that no region can serve are omitted."""
        shape = self.problem.shape
        tables: dict[Key, dict[str, float]] = {}
        for key, pool, per_s in zip(self.key.tolist(), self.pool.tolist(), self.per_s.tolist(), strict=True):
            tables.setdefault(shape.keys[key], {})[shape.pools[pool]] = per_s
        return {
            key: normalised(table) if len(table) > 1 else dict.fromkeys(table, 1.0) for key, table in tables.items()
        }

"""A change of the policy for one game day: written, in force at every agent before the day, and restored after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from adapters.servers.errors import ServerError
from lab.planet.planet import Planet, ask

IN_FORCE_WITHIN_S = 20.0
"""Maximum time (s) until every agent applies a change."""

POLL_S = 0.25
"""Interval (s) of requests for the status of every agent, each of which costs the fleet CPU time."""

SETTLED_S = 1.5
"""Time (s) for which every agent must have the same policy: a change of two files may be seen as two changes."""


def change_policy(planet: Planet, edits: Mapping[str, Callable[[str], str]]) -> Callable[[], None]:
    """Edit files of the policy and wait until every agent applies the change; return a function that restores them.

    Args:
        edits: by name of the file.

    Raises:
        ServerError: an agent does not apply the policy in time.
    """
    before, old = {name: (planet.policy_dir / name).read_text() for name in edits}, _digests(planet)

    def restore() -> None:
        for name, text in before.items():
            (planet.policy_dir / name).write_text(text)

    for name, edit in edits.items():
        (planet.policy_dir / name).write_text(edit(before[name]))
    until, since = time.monotonic() + IN_FORCE_WITHIN_S, time.monotonic()
    seen: dict[str, str] = {}
    while not seen or time.monotonic() - since < SETTLED_S:
        if time.monotonic() > until:
            restore()
            raise ServerError(f"an agent did not apply the changed policy: {', '.join(edits)}")
        time.sleep(POLL_S)
        now = _digests(planet)
        are_new = len(set(now.values())) == 1 and all(now[name] not in ("", old[name]) for name in now)
        if not are_new or now != seen:
            seen, since = now if are_new else {}, time.monotonic()
    return restore


def statuses(planet: Planet) -> dict[str, dict[str, Any]]:
    """Return the status of every agent; empty for one that does not respond."""
    return {name: ask(where + "/status", planet.agents_key) or {} for name, where in planet.admin_urls().items()}


def _digests(planet: Planet) -> dict[str, str]:
    return {name: status.get("policy_digest", "") for name, status in statuses(planet).items()}

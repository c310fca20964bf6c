"""Runs every attack against one fleet and prints a line for each; exit code 1 if an attack succeeded.

Arguments select attacks: those whose number or function name contains one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from lab import debian_packages
from tests.attacks import (  # noqa: F401 (they add attacks)
    at_the_picker,
    between_envoy_and_picker,
    by_another_fleet,
    by_browsers,
    by_created_tenants,
    by_floods,
    by_operators,
    by_strangers,
    by_tenants,
    on_dns,
    on_etcd,
    on_files,
    on_jobs,
    on_redis,
    unclear_requests,
    with_a_leaked_key,
    with_a_stolen_key,
)
from tests.attacks.fleet import Fleet, running_fleet, within
from tests.attacks.suite import ATTACKS, Attack, Broken

ATTACK_TIMEOUT_S = 75.0
RECOVERY_S = 30.0
"""Time within which the fleet serves as before, once an attack has ended."""

NEEDED = {"pdns_server": on_dns.__name__, "slowhttptest": "flood_by_slowhttptest"}
"""Programs of Debian, by which part of the name of the attacks that need them."""


async def result_of(attack: Attack, fleet: Fleet) -> str:
    """Return `held`, or the broken property."""
    try:
        async with asyncio.timeout(ATTACK_TIMEOUT_S):
            await attack.run(fleet)
    except Broken as broken:
        return f"BROKEN: {broken}"
    except Exception as error:
        return f"BROKEN: the attack could not be finished: {type(error).__name__}: {error}"
    if fleet.dead():
        return f"BROKEN: processes have ended: {', '.join(fleet.dead())}"
    if not await within(RECOVERY_S, fleet.healthy):
        return f"BROKEN: {RECOVERY_S:g} s after the attack, {await fleet.problem()}"
    return "held"


async def run(selected: list[Attack]) -> int:
    """Run attacks; returns the number of successful ones."""
    broken = 0
    with tempfile.TemporaryDirectory(prefix="penstock-attacks-") as directory:
        async with running_fleet(Path(directory)) as fleet:
            if not await within(60.0, fleet.healthy):
                print("the fleet does not serve before the first attack", file=sys.stderr)
                return 1
            for attack in sorted(selected, key=lambda attack: (float(attack.number), attack.title)):
                started = time.monotonic()
                result = await result_of(attack, fleet)
                broken += result != "held"
                print(f"{attack.number:>5}  {attack.title} ({time.monotonic() - started:.1f} s): {result}", flush=True)
    return broken


def main() -> int:
    """Select the attacks by the arguments, and run them."""
    os.umask(0o077)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    words = sys.argv[1:]
    selected = [
        attack
        for attack in ATTACKS
        if not words or any(word == attack.number or word in attack.run.__name__ for word in words)
    ]
    for program, where in NEEDED.items():
        left_out = [attack for attack in selected if where in f"{attack.run.__module__}.{attack.run.__name__}"]
        if left_out and debian_packages.program(program) is None:
            print(f"{len(left_out)} attacks are left out: there is no {program}, a program of Debian")
            selected = [attack for attack in selected if attack not in left_out]
    if not selected:
        print("no attack has that number or name", file=sys.stderr)
        return 2
    broken = asyncio.run(run(selected))
    print(f"{len(selected) - broken} of {len(selected)} attacks held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

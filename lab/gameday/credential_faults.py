"""Faults of credentials and clocks: certificates that expire, and clocks that jump, while processes run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from adapters.files.authority_files import load_authority, renew_identity
from adapters.files.watched_files import CHECK_S
from adapters.servers.errors import ServerError
from lab.planet.configs import AUTHORITY_DIR, agent_identity_dir, control_plane_identity_dir
from lab.planet.planet import Planet

JUMP_S = 3600

ELECTION_S = 10.0
"""Maximum time (s) to wait for a leader. On a busy machine a leader may lose its lease."""

LOADED_S = CHECK_S + 1.0
"""Time (s) after which a process has loaded a new certificate."""

LIFETIME_S = 9.0
"""Time (s) from the load of a certificate until its expiry, which is rounded down to a whole Unix second."""

LIBRARIES = tuple(
    Path(folder) / "faketime" / "libfaketimeMT.so.1"
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
)
"""Paths at which packages install libfaketime."""


def expire_agent(region: str, agent: str) -> Callable[[Planet], float]:
    """Return a function that shortens the validity of an agent's certificate and returns the time (s) until expiry."""
    return lambda planet: _shorten(planet, agent_identity_dir(planet.directory, region, agent))


def expire_leader(planet: Planet) -> float:
    """Shorten the validity of the leading control plane's certificate; return the time (s) until expiry."""
    return _shorten(planet, control_plane_identity_dir(planet.directory, leader_of(planet)))


def _shorten(planet: Planet, directory: Path) -> float:
    """Replace the certificate of a process twice, since the previous certificate remains valid after a rotation."""
    authority = load_authority(planet.directory / AUTHORITY_DIR)
    for _ in range(2):
        expires_at = int(time.time() + LOADED_S + LIFETIME_S)
        renew_identity(authority, directory, expires_at + 0.5 - time.time())
        time.sleep(LOADED_S)
    return expires_at - time.time()


def renew_agent(region: str, agent: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that ends with the renewal of an agent's certificate."""

    def inject(planet: Planet) -> Callable[[], None]:
        def lift() -> None:
            authority = load_authority(planet.directory / AUTHORITY_DIR)
            renew_identity(authority, agent_identity_dir(planet.directory, region, agent))

        return lift

    return inject


def renew_control_planes(planet: Planet) -> Callable[[], None]:
    """Return the end of the fault, which renews the certificates of all control planes."""

    def lift() -> None:
        authority = load_authority(planet.directory / AUTHORITY_DIR)
        for name in planet.topology.control_planes:
            renew_identity(authority, control_plane_identity_dir(planet.directory, name))

    return lift


def jump(process: str) -> Callable[[Planet], Callable[[], None]]:
    """Return a fault that sets the clock of a process ahead by JUMP_S; its end resets the clock."""

    def inject(planet: Planet) -> Callable[[], None]:
        clock = clock_file(planet.directory, process)
        _set(clock, JUMP_S)
        return lambda: _set(clock, 0)

    return inject


def jump_leader(planet: Planet) -> Callable[[], None]:
    """Set the clock of the leading control plane ahead by JUMP_S; the end of the fault resets the clock."""
    return jump(f"control plane {leader_of(planet)}")(planet)


def clocks(directory: Path, processes: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """Return, by process, the environment that makes its wall clock adjustable; the monotonic clock is unaffected.

    Raises:
        ServerError: libfaketime is not installed.
    """
    library = _library()
    if library is None:
        raise ServerError("clocks cannot be changed without libfaketime; install the package libfaketime")
    return {process: _environment(library, clock_file(directory, process)) for process in processes}


def can_change_clocks() -> bool:
    """Whether libfaketime is installed."""
    return _library() is not None


def _library() -> Path | None:
    return next((path for path in LIBRARIES if path.is_file()), None)


def leader_of(planet: Planet) -> str:
    """Wait for a leader and return the name of the leading control plane.

    Raises:
        ServerError: no control plane leads within ELECTION_S.
    """
    leader = planet.wait_for_leader(ELECTION_S)
    if leader is None:
        raise ServerError("no control plane reports that it leads; look at the logs of the control planes")
    return leader


def clock_file(directory: Path, process: str) -> Path:
    """Return the path of the file that sets the clock of a process."""
    return directory / "clocks" / process.replace(" ", "-").replace("/", "-")


def _environment(library: Path, clock: Path) -> Mapping[str, str]:
    clock.parent.mkdir(parents=True, exist_ok=True)
    _set(clock, 0)
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def _set(clock: Path, ahead_s: int) -> None:
    draft = clock.with_suffix(".new")
    draft.write_text(f"{ahead_s:+d}\n", encoding="ascii")
    os.replace(draft, clock)

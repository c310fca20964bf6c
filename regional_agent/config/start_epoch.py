"""The agent's fencing epoch: a number that grows with every start, so that writes of an earlier start are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from regional_agent.config.last_known_good import StateFile

MAX_EPOCH = 2**53 - 1
"""Maximum epoch. Redis scripts and JSON readers represent larger integers inexactly."""

log = structlog.get_logger()


class AgentInstance(NamedTuple):
    """One start of an agent."""

    region: str
    name: str
    """Name of the agent: unique in the region and the same after a restart."""
    epoch: int
    """Grows with every start of the agent; at most MAX_EPOCH."""


class Start(msgspec.Struct, frozen=True):
    """The epoch of the last start, as stored on disk."""

    epoch: int


def next_epoch(state_dir: Path, unix_s: float) -> int:
    """Return the epoch of this start and store it: at least the clock (ms), and greater than the stored epoch.

    Because of the stored epoch, the epoch grows after the clock was set back; because of the clock, it grows after the
    loss of the disk.

    Args:
        state_dir: directory of the stored epoch.
        unix_s: Unix time, in seconds.
    """
    file = StateFile(state_dir / "start", Start)
    before = file.load()
    epoch = max(int(unix_s * 1000), before.epoch + 1 if before is not None and before.epoch < MAX_EPOCH else 0)
    try:
        file.write(Start(epoch))
    except OSError as error:
        log.warning("start epoch not stored", file=str(file.path), error=error.strerror)
    return epoch

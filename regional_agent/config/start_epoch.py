"""The agent's epoch: a number that grows with every start, so that whatever an earlier start left is harmless."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from regional_agent.config.last_known_good import LastKnownGood

MAX_EPOCH = 2**53 - 1
"""Redis scripts and JSON readers hold larger integers inexactly."""

log = structlog.get_logger()


class Start(msgspec.Struct, frozen=True):
    """The newest start, as it is kept on disk."""

    epoch: int


def next_epoch(state_dir: Path, unix_s: float) -> int:
    """The epoch of the start that happens now: above the one on disk, and above the clock's where the disk is new.

    The clock alone would do but for the days when it is set back; the disk alone, but for those when it is lost.
    """
    memory = LastKnownGood(state_dir / "start", Start)
    before = memory.load()
    epoch = max(int(unix_s * 1000), before.epoch + 1 if before is not None and before.epoch < MAX_EPOCH else 0)
    try:
        memory.write(Start(epoch))
    except OSError as error:
        log.warning("start not remembered", file=str(memory.path), error=error.strerror)
    return epoch

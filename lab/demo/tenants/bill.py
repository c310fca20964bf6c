"""Reads the bill of tenants from the spools of agents: what has not been put into the usage store yet."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from lab.demo.records import Billed
from penstock.ledger.ledger_record import RecordKind
from penstock.ledger.spool_format import BadSpoolFile, read_spool
from regional_agent.ledger.spool_file import OPEN_SUFFIX, SEALED_SUFFIX, boot_id

POLL_S = 0.1
WITHIN_S = 3.0
"""Maximum time (s) until the records of the last requests are in the spool, which a record enters at the end."""


def billed(state: Path, tenants: Collection[str]) -> tuple[Billed, ...]:
    """Return one entry for each request of some tenants that an agent has recorded.

    Args:
        state: directory of the agents' states.
    """
    deadline, before = time.monotonic() + WITHIN_S, -1
    while True:
        found = _read(state, tenants)
        if len(found) == before or time.monotonic() > deadline:
            return found
        before = len(found)
        time.sleep(POLL_S)


def _read(state: Path, tenants: Collection[str]) -> tuple[Billed, ...]:
    found = []
    for path in sorted(state.glob("*/ledger/*")):
        if path.suffix not in (OPEN_SUFFIX, SEALED_SUFFIX):
            continue
        try:
            records = read_spool(path.read_bytes(), boot_id()).records
        except (BadSpoolFile, FileNotFoundError):
            # A new file has no record yet; a sealed one has another name.
            continue
        found += [
            Billed(record.request_id, record.tenant, record.outcome, record.output_tokens, record.is_estimated)
            for record in records
            if record.kind == RecordKind.REQUEST and record.tenant in tenants
        ]
    return tuple(found)

"""Fixtures that several unit tests use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[AsyncIOScheduler]:
    """A scheduler with the settings of the control plane's."""
    started = AsyncIOScheduler(
        timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
    )
    started.start()
    yield started
    started.shutdown(wait=False)

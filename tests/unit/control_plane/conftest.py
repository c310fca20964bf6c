"""Fixtures of the control plane's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from tests.support.api_app import TOKEN, client_of, leading_control_plane, served


@pytest.fixture
async def control_plane() -> AsyncIterator[ControlPlane]:
    """A control plane that leads, with the policy of PLANET."""
    async with leading_control_plane() as north:
        yield north


@pytest.fixture
async def http(control_plane: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its API, without a credential."""
    async with client_of(served(control_plane, Access(TOKEN))) as client:
        yield client

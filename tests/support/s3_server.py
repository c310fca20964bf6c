"""A bucket over the S3 protocol, of moto's server, which `make test-object-stores` installs."""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest

from tests.support.reserved_ports import reserved_ports
from tests.support.wait import until_async

MOTO = os.environ.get("MOTO_SERVER") or shutil.which("moto_server")
NEEDS_MOTO = [pytest.mark.long, pytest.mark.skipif(MOTO is None, reason="run by make test-object-stores")]
SECRET = "not-in-any-message"
BUCKET = "penstock"


@contextmanager
def s3_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Set the environment of clients of S3 to a port, on which nothing listens yet."""
    with reserved_ports(1) as (port,):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield port


@asynccontextmanager
async def s3_server(port: int) -> AsyncIterator[None]:
    """Run the server with an empty bucket."""
    assert MOTO is not None
    arguments = ("-H", "127.0.0.1", "-p", str(port))
    process = await asyncio.create_subprocess_exec(MOTO, *arguments, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with httpx.AsyncClient() as client:

            async def creates() -> bool:
                try:
                    return (await client.put(f"http://127.0.0.1:{port}/{BUCKET}")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until_async(creates)
        yield
    finally:
        process.kill()
        await process.wait()

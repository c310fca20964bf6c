"""Runs asynchronous tests on uvloop, the event loop of production."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import uvloop

Arguments = ParamSpec("Arguments")


def on_uvloop(test: Callable[Arguments, Awaitable[None]]) -> Callable[Arguments, None]:
    """Convert an asynchronous test to a synchronous test."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        async def body() -> None:
            await test(*args, **kwargs)

        uvloop.run(body())

    return run

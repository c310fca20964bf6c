"""`penstock-lab engines`: a process that runs several engines until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from lab.engine.endpoint import Endpoint
from lab.engine.engine_config import ConfigError, EnginesConfig, load_engines_config
from lab.engine.engine_http import HttpConnection
from lab.engine.witness_log import WitnessBroken, WitnessLog
from lab.open_files import allow_many_open_files
from lab.refusal import refuse

LISTEN_BACKLOG = 1024

NO_WITNESS = 1
"""Exit code after a failed write to the witness log."""


def engines(
    config: Annotated[Path, typer.Option(help="Engines of one region: YAML or JSON, see lab/engine/engine_config.py.")],
) -> None:
    """Run fake GPU engines.

    Prints one JSON line for each endpoint when all endpoints listen, then serves until SIGTERM or SIGINT. An invalid
    configuration is reported in one line on stderr, with exit code 2.
    """
    try:
        wanted = load_engines_config(config)
        sockets = _bind_all(wanted, config)
        witness = _open_witness(wanted, config)
    except ConfigError as error:
        refuse("engines", str(error))
    allow_many_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise typer.Exit(runner.run(_serve(wanted, sockets, witness)))


async def _serve(config: EnginesConfig, sockets: list[socket.socket], witness: WitnessLog) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, WitnessBroken):
            if not stopped.done():
                print(error, file=sys.stderr)
            stop(NO_WITNESS)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, 0)
    endpoints = [Endpoint(endpoint, witness, loop) for endpoint in config.endpoints]
    servers = [
        await loop.create_server(partial(HttpConnection, endpoint), sock=sock, backlog=LISTEN_BACKLOG)
        for endpoint, sock in zip(endpoints, sockets, strict=True)
    ]
    _announce(config, sockets)
    code = await stopped
    for server in servers:
        server.close()
    for endpoint in endpoints:
        endpoint.close()
    witness.close()
    return code


def _bind_all(config: EnginesConfig, path: Path) -> list[socket.socket]:
    """Bind every socket, or none."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sockets: list[socket.socket] = []
    for index, endpoint in enumerate(config.endpoints):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((config.host, endpoint.port))
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            for bound in sockets:
                bound.close()
            raise ConfigError(
                f"{path}: endpoints[{index}].port: cannot listen on {config.host} port {endpoint.port}: "
                f"{error.strerror or error}; choose another, or 0 for a free one"
            ) from None
    return sockets


def _open_witness(config: EnginesConfig, path: Path) -> WitnessLog:
    try:
        return WitnessLog(config.witness_dir, config.region)
    except OSError as error:
        raise ConfigError(f"{path}: witness_dir: cannot write in {config.witness_dir}: {error.strerror}") from None


def _announce(config: EnginesConfig, sockets: list[socket.socket]) -> None:
    """Print a line for each endpoint."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    for endpoint, sock in zip(config.endpoints, sockets, strict=True):
        names = ("zone", "model", "accelerator", "max_num_seqs", "max_model_len")
        line: dict[str, object] = {
            "endpoint": endpoint.name,
            "url": f"http://{host}:{sock.getsockname()[1]}",
            "region": config.region,
        }
        line |= {name: getattr(endpoint, name) for name in names}
        line |= {"devices": endpoint.deployment.tensor_parallel, "pid": os.getpid()}
        print(msgspec.json.encode(line).decode())
    sys.stdout.flush()

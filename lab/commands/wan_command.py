"""`penstock-lab wan`: emulates a WAN until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import typer
import uvloop

from lab.open_files import allow_many_open_files
from lab.refusal import refuse
from lab.wan.control import WanControl
from lab.wan.matrix import SHIPPED_MATRIX, MatrixError, read_matrix
from lab.wan.network import Wan
from lab.wan.wan_config import LinkPlan, WanConfig, WanConfigError, plan_links, read_config


def wan(
    config: Annotated[Path, typer.Option(help="Links of the network: JSON, see lab/wan/wan_config.py.")],
    rtt: Annotated[Path, typer.Option(help="Matrix of round trips: CSV with from,to,rtt_ms.")] = SHIPPED_MATRIX,
    seed: Annotated[int, typer.Option(help="Seed of the jitter.")] = 0,
) -> None:
    """Emulate a wide-area network: forward TCP connections with round trips and faults.

    Prints one JSON line for each link, then one JSON line with the URL of the control socket, and serves until
    SIGTERM or SIGINT.
    """
    try:
        wanted = read_config(config)
        plans = plan_links(wanted, read_matrix(rtt))
        allow_many_open_files()
        uvloop.run(_serve(wanted, plans, Random(seed)))
    except (WanConfigError, MatrixError) as error:
        refuse("wan", str(error))


async def _serve(config: WanConfig, plans: list[LinkPlan], rng: Random) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Wan(plans, rng, config.host) as network:
        control = WanControl(network, config.host, config.control_port)
        try:
            port = await control.start()
        except OSError as error:
            raise WanConfigError(
                f"control_port: cannot listen on {config.host}:{config.control_port}: {error.strerror}; "
                "give another port, or 0 for any"
            ) from None
        for status in network.statuses():
            print(msgspec.json.encode(status).decode())
        listening = {"control": f"http://{config.host}:{port}", "links": len(plans)}
        print(msgspec.json.encode(listening).decode(), flush=True)
        await stop.wait()
        await control.close()

"""`penstock endpoints`: list the endpoints of the fleet, with state and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from control_plane.cli.command_options import ReadClient, with_fleet_options
from control_plane.cli.error_output import print_error
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.status.endpoint_status import EndpointPage, EndpointStatus
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.engines.engine_facts import room_text
from penstock.policy.accelerators import relative_speed_of

LIMIT = 500
"""Page size of the requests."""

_COLOURS = {
    EndpointCondition.DRAINING: "magenta",
    EndpointCondition.NEW: "dim",
    EndpointCondition.DOWN: "bold red",
    EndpointCondition.SUSPECT: "red",
    EndpointCondition.EJECTED: "red",
    EndpointCondition.UNLOADED: "yellow",
    EndpointCondition.WARMING: "cyan",
    EndpointCondition.READY: "green",
}


@with_fleet_options
def endpoints(
    api: ReadClient,
    region: Annotated[str | None, typer.Option(help="Limit to this region.")] = None,
    model: Annotated[str | None, typer.Option(help="Limit to endpoints that serve this model.")] = None,
    state: Annotated[EndpointCondition | None, typer.Option(help="Limit to this state.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List endpoints: address, models, state, load, the age of each report, and why an endpoint is not ready."""
    wanted = {"region": region, "model": model, "state": state.value if state is not None else None, "limit": LIMIT}
    pages = api.pages("/v1/endpoints", EndpointPage, wanted)
    found = [endpoint for page in pages for endpoint in page.items]
    print_as(output, found, lambda: _view(found))
    if left_out := pages[-1].left_out:
        print_error("endpoints", f"{left_out} more endpoints are omitted from reports; query their agents")


def _remarks(endpoint: EndpointStatus) -> Text:
    """Why an endpoint is not ready, and how it differs from policy and siblings."""
    text = Text(endpoint.reason)
    if endpoint.skew and endpoint.skew != endpoint.reason:
        text.append(("; " if endpoint.reason else "") + f"version skew: {endpoint.skew}", "yellow")
    return text


def _gpu(endpoint: EndpointStatus) -> Text:
    """Utilisation, memory and temperature of the GPUs, as far as they are reported."""
    gpu = endpoint.gpu
    if gpu is None:
        return Text("-")
    parts = (
        "" if gpu.utilisation is None else f"{gpu.utilisation:.0%}",
        "" if gpu.memory_used is None else f"{gpu.memory_used:.0%} mem",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
        "throttled" if gpu.is_throttled else "",
    )
    return Text(" ".join(filter(None, parts)), "bold red" if gpu.is_throttled else "")


def _accelerator(endpoint: EndpointStatus) -> str:
    """The hardware, and whether its speed is unknown before requests have completed."""
    name = endpoint.accelerator
    return "-" if name is None else name if relative_speed_of(name) is not None else f"{name} (unknown speed)"


def _view(found: Sequence[EndpointStatus]) -> RenderableType:
    places = ("region", "endpoint", "address", "models", "zone", "accelerator", "engine")
    shows_gpus = any(endpoint.gpu is not None for endpoint in found)
    shows_room = any(room_text(endpoint.served) for endpoint in found)
    words, numbers = (
        (*places, *(("room",) if shows_room else ()), "state"),
        ("load", *(("GPU",) if shows_gpus else ()), "age"),
    )
    table = table_of(*words, *numbers, "reason", title="Endpoints", right=numbers)
    for endpoint in found:
        cells = (
            endpoint.region,
            endpoint.name,
            endpoint.address,
            ", ".join(endpoint.models),
            endpoint.zone or "-",
            _accelerator(endpoint),
            endpoint.engine_version or "-",
            *((room_text(endpoint.served) or "-",) if shows_room else ()),
        )
        state = Text(f"{endpoint.state}{', burst' if endpoint.is_burst else ''}", _COLOURS[endpoint.state])
        load = f"{endpoint.in_flight}/{endpoint.slots}"
        gpu = (_gpu(endpoint),) if shows_gpus else ()
        table.add_row(*cells, state, load, *gpu, f"{endpoint.age_s:.0f} s", _remarks(endpoint))
    return table

"""`penstock quickstart`: one region on this machine, in front of engines that run already."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error

if TYPE_CHECKING:
    from control_plane.quickstart.places import Place
    from control_plane.quickstart.region_dir import Engine, RegionDir

WATCH_S = 0.5
"""Interval (s) of the check that all processes run."""


def quickstart(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a model server, such as http://127.0.0.1:8000; may be repeated. Default: as in the last run."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Name of a model that every engine serves; may be repeated. Default: the engines are asked."),
    ] = None,
    region: Annotated[str, typer.Option(help="Name of the region.")] = "local",
    place: Annotated[
        str, typer.Option(help="Country (DE) or time zone (Europe/Berlin) of the region. Default: that of the machine.")
    ] = "",
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the region's policy, settings, certificates and state.")
    ] = Path("penstock-quickstart"),
    once: Annotated[bool, typer.Option(hidden=True, help="Stop as soon as the region serves.")] = False,
) -> None:
    """Run one region on this machine: etcd, Valkey, a control plane and an agent in front of your engines.

    The files in the directory are those of a production fleet; a later run continues with them.
    """
    began_at = time.monotonic()
    with exit_on_error("quickstart"):
        # Imported late, because the certificates and the HTTP client load slowly.
        from adapters.files.plain_file import UnusableFile
        from adapters.servers.errors import ServerError
        from control_plane.policy.bundle_errors import PolicyRefused
        from control_plane.quickstart.engine_models import UnusableEngine
        from control_plane.quickstart.places import UnknownPlace
        from control_plane.quickstart.region_dir import UnusableDirectory, first_model
        from control_plane.quickstart.region_processes import ended, running, wait_served

        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        try:
            engines = _engines(engine or [], model or [])
            region_dir = _region_dir(directory, region, place, engines)
            served = first_model(region_dir)
            with running(region_dir, lambda name: typer.echo(f"starting {name} ...", err=True)) as servers:
                wait_served(region_dir, served)
                typer.echo(_summary(region_dir, served, time.monotonic() - began_at))
                while not once and not stop.wait(WATCH_S):
                    error = ended(servers)
                    if error is not None:
                        raise error
                typer.echo("stopping ...", err=True)
        except (UnusableEngine, UnusableDirectory, UnknownPlace, UnusableFile) as error:
            raise UsageFault(str(error)) from None
        except PolicyRefused as refused:
            problems = "; ".join(map(str, refused.errors))
            remedy = "serve a model under another name with the engine's --served-model-name or --alias"
            raise UsageFault(f"the policy refuses a name: {problems}; {remedy}") from None
        except ServerError as error:
            typer.echo(f"penstock quickstart: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from None


def _engines(urls: list[str], models: list[str]) -> list[Engine]:
    from control_plane.quickstart.engine_models import base_url, models_of
    from control_plane.quickstart.region_dir import Engine

    bases = list(dict.fromkeys(base_url(url) for url in urls))
    return [Engine(base, tuple(models or models_of(base))) for base in bases]


def _region_dir(directory: Path, region: str, place: str, engines: list[Engine]) -> RegionDir:
    from control_plane.quickstart.region_dir import add_engines, open_region_dir, write_region_dir

    found = open_region_dir(directory)
    if found is None:
        if not engines:
            raise UsageFault("name the engines of the new region: --engine http://127.0.0.1:8000")
        return write_region_dir(directory, region, _place(place), engines)
    add_engines(found, engines)
    return found


def _place(name: str) -> Place:
    from control_plane.quickstart.places import place_named, place_of_machine

    return place_named(name) if name else place_of_machine()


def _summary(region_dir: RegionDir, model: str, took_s: float) -> str:
    key = region_dir.api_key.read_text(encoding="ascii").strip()
    base = region_dir.base_url
    return f"""
Region {region_dir.region} serves after {took_s:.1f} s. Ctrl-C stops it; the same command continues it.

  base URL  {base}
  API key   {key}
  page      {region_dir.api_url}/  (sign in with the token in {region_dir.admin_token})
  files     {region_dir.path}: policy/ and the settings of both daemons may be edited

curl {base}/chat/completions -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{base}", api_key="{key}")
print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}]))
"""

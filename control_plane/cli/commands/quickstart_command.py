"""`penstock quickstart`, `invite` and `join`: regions in front of engines that run already, without a configuration."""

from __future__ import annotations

import ipaddress
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error

if TYPE_CHECKING:
    from control_plane.quickstart.places import Place
    from control_plane.quickstart.region_dir import Engine, RegionDir

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_S = 0.5
"""Interval (s) of the check that all processes run."""

RENEWAL_S = 3600.0
"""Interval (s) of the check for certificates that expire soon."""

MAX_SHOWN = 20
"""Maximum number of models that are shown as served, and of an engine's that are shown with why they are not."""

LOCAL = "127.0.0.1"

EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        help="URL of a model server, such as http://127.0.0.1:8000; repeatable. Default: the last run's.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", help="A model that every engine serves; may be repeated. Default: the engines are asked."),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--engine-key-file", help="File with the key that the engines require, such as vLLM's --api-key."),
]
PlaceOption = Annotated[
    str,
    typer.Option(
        "--place", help="Country (DE) or time zone (Europe/Berlin) of the region. Default: that of the machine."
    ),
]
DirOption = Annotated[Path, typer.Option("--dir", help="Directory of policy, settings, certificates and state.")]
OnceOption = Annotated[bool, typer.Option("--once", hidden=True, help="Stop as soon as the region serves.")]


def quickstart(
    engine: EngineOption = None,
    model: ModelOption = None,
    engine_key: KeyOption = None,
    region: Annotated[str | None, typer.Option(help="Name of the region. Default: local.", show_default=False)] = None,
    place: PlaceOption = "",
    directory: DirOption = Path("penstock-quickstart"),
    host: Annotated[
        str | None,
        typer.Option(
            help="IP address of this machine, where other regions reach it (`penstock invite`). Default: 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    once: OnceOption = False,
) -> None:
    """Run one region on this machine: etcd, Valkey, a control plane and an agent in front of your engines.

    The files in the directory are those of a production fleet; a later run continues with them.
    """
    with exit_on_error("quickstart"), _usage_errors():
        from control_plane.quickstart.region_dir import add_engines, open_region_dir, require_same, write_region_dir

        found = open_region_dir(directory)
        engines = _engines(engine, model, engine_key, found)
        if found is None:
            _require(engines)
            found = write_region_dir(directory, region or "local", _place(place), engines, _address(host or LOCAL))
        else:
            require_same(found, region, host)
            add_engines(found, engines)
        _run("quickstart", found, once=once)


def invite(
    region: Annotated[str, typer.Argument(help="Name of the new region.", show_default=False)],
    host: Annotated[str, typer.Option(help="IP address of its machine, where this one reaches it.")],
    place: Annotated[str, typer.Option(help="Country (FR) or time zone (Europe/Paris) of the new region.")],
    directory: DirOption = Path("penstock-quickstart"),
    file: Annotated[Path | None, typer.Option(help="The invitation. Default: REGION.invitation.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and print the changes; write nothing.")] = False,
) -> None:
    """Add a region to a fleet that `penstock quickstart --host` started, and write the invitation for its machine.

    The invitation contains the key of the new region's agent: copy it over an encrypted connection, and delete it.
    """
    with exit_on_error("invite"), _usage_errors():
        from control_plane.quickstart.invitation import invite as write_invitation
        from control_plane.quickstart.region_dir import open_region_dir

        found = open_region_dir(directory)
        if found is None:
            raise UsageFault(f"{directory} has no region; name that of `penstock quickstart` with --dir")
        target = file or Path(f"{region}.invitation")
        changes = write_invitation(found, region, _place(place), _address(host), target, dry_run=dry_run)
        if dry_run:
            typer.echo(f"would {', '.join(changes)} in {found.policy}, and write {target}")
            return
        typer.echo(f"wrote {target}; on {host}: penstock join {target.name} --engine http://127.0.0.1:8000")


def join(
    invitation: Annotated[Path, typer.Argument(help="The file that `penstock invite` wrote.", show_default=False)],
    engine: EngineOption = None,
    model: ModelOption = None,
    engine_key: KeyOption = None,
    directory: DirOption = Path("penstock-region"),
    once: OnceOption = False,
) -> None:
    """Run an invited region on this machine: Valkey and an agent in front of your engines.

    A later run with the same directory continues, also without the invitation.
    """
    with exit_on_error("join"), _usage_errors():
        from control_plane.quickstart.invitation import join as write_region
        from control_plane.quickstart.invitation import read_invitation
        from control_plane.quickstart.region_dir import add_engines, open_region_dir, require_same

        found = open_region_dir(directory)
        offered = read_invitation(invitation) if found is None or invitation.exists() else None
        if found is not None:
            require_same(found, offered and offered.region)
        engines = _engines(engine, model, engine_key, found, offered and offered.models)
        if found is None:
            _require(engines)
            found = write_region(directory, invitation, engines)
        else:
            add_engines(found, engines)
        _run("join", found, once=once)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn errors of input into usage errors."""
    # Imported late, because the certificates and the HTTP client load slowly.
    from adapters.files.plain_file import UnusableFile
    from control_plane.policy.bundle_errors import PolicyRefused
    from control_plane.quickstart.engine_models import UnusableEngine
    from control_plane.quickstart.invitation import UnusableInvitation
    from control_plane.quickstart.places import UnknownPlace
    from control_plane.quickstart.region_dir import UnusableDirectory

    try:
        yield
    except PolicyRefused as refused:
        problems = "; ".join(map(str, refused.errors))
        remedy = "; an engine's --served-model-name or --alias gives a model another name"
        of_names = any(error.file.startswith("models") and error.field == "name" for error in refused.errors)
        raise UsageFault(f"the policy refuses: {problems}{remedy if of_names else ''}") from None
    except (UnusableEngine, UnusableDirectory, UnusableInvitation, UnknownPlace, UnusableFile) as error:
        raise UsageFault(str(error)) from None


def _run(command: str, region_dir: RegionDir, *, once: bool) -> None:
    """Run the processes of a region until SIGINT or SIGTERM, or until one of them ends."""
    from adapters.servers.errors import PortTaken, ServerError
    from control_plane.quickstart.region_dir import engine_urls, models_served
    from control_plane.quickstart.region_processes import ended, running, wait_served

    began_at = time.monotonic()
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    models = models_served(region_dir)
    summary: Callable[[RegionDir, list[str], float], str] = _summary if region_dir.has_control_plane else _joined

    def waiting(reason: str) -> None:
        engines, log = ", ".join(engine_urls(region_dir)), region_dir.path / "logs" / "agent.log"
        typer.echo(f"waiting for the agent: {reason}; engines: {engines}; log: {log}", err=True)
        if region_dir.has_control_plane:
            typer.echo(f"what each lacks: penstock endpoints {_access(region_dir)}", err=True)

    _renew(region_dir)
    try:
        with running(region_dir, lambda name: typer.echo(f"starting {name} ...", err=True)) as servers:
            wait_served(region_dir, models[0], servers, waiting)
            typer.echo(summary(region_dir, models, time.monotonic() - began_at))
            renew_at = time.monotonic() + RENEWAL_S
            while not once:
                time.sleep(WATCH_S)
                error = ended(servers)
                if error is not None:
                    raise error
                if time.monotonic() > renew_at:
                    _renew(region_dir)
                    renew_at = time.monotonic() + RENEWAL_S
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    except PortTaken as error:
        remedy = "in its ports.yaml and in the settings of both daemons, or stop what uses it"
        typer.echo(f"penstock {command}: {error} {remedy}, such as another run with --dir {region_dir.path}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except ServerError as error:
        typer.echo(f"penstock {command}: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None


def _renew(region_dir: RegionDir) -> None:
    """Renew the certificates that expire soon. Without a new one, the present one is used until it expires."""
    from adapters.files.plain_file import UnusableFile
    from control_plane.quickstart.renewal import renew_identities
    from penstock.wire.identity import BadIdentity

    try:
        renewed = renew_identities(region_dir, time.time())
    except (OSError, UnusableFile, BadIdentity, ValueError) as error:
        typer.echo(f"certificates not renewed: {error}", err=True)
        return
    if renewed:
        typer.echo(f"renewed the certificates of {', '.join(renewed)}", err=True)


def _stop(*_: object) -> None:
    """Interrupt the main thread, whatever it waits for; ignore further signals, which would interrupt the stop."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _engines(
    urls: list[str] | None,
    models: list[str] | None,
    key_file: Path | None,
    region_dir: RegionDir | None,
    fleet: Collection[str] | None = None,
) -> list[Engine]:
    """Return the engines of the command line that answer, and whose models are therefore known.

    An engine of an earlier run need not answer: its models are written.

    Args:
        fleet: the models of the fleet that a new region joins; None for others.
    """
    from control_plane.policy.folder import read_folder
    from control_plane.quickstart.engine_models import UnusableEngine, base_url, models_of, presets_of, read_key
    from control_plane.quickstart.region_dir import Engine, engine_urls

    policy: Mapping[str, str] | None = {} if fleet is None else None
    if region_dir is not None:
        policy = read_folder(region_dir.policy) if region_dir.has_control_plane else None
    known = [] if region_dir is None else engine_urls(region_dir)
    key, named = (read_key(key_file), str(key_file.absolute())) if key_file else ("", "")
    engines = []
    for base in dict.fromkeys(base_url(url) for url in urls or []):
        try:
            served = tuple(dict.fromkeys(models or _servable(base, models_of(base, key), policy, fleet)))
            presets = () if region_dir is not None else tuple(presets_of(base, key))
            engines.append(Engine(base, served, named, presets))
        except UnusableEngine:
            if base not in known:
                raise
    return engines


def _servable(
    engine: str, listed: list[str], policy: Mapping[str, str] | None, fleet: Collection[str] | None
) -> list[str]:
    """Return the models of an engine that can be served; print the others with the reason (see `left_out`)."""
    from adapters.error_text import printable
    from control_plane.quickstart.engine_models import UnusableEngine
    from control_plane.quickstart.servable_models import left_out

    reasons = left_out(listed, policy, fleet)
    shown = [printable(f"{engine}: {model[:200]!r} is not served: {reason}") for model, reason in reasons.items()]
    if len(reasons) == len(listed):
        raise UnusableEngine("\n".join(shown[:MAX_SHOWN]))
    for line in shown[:MAX_SHOWN]:
        typer.echo(line, err=True)
    if len(shown) > MAX_SHOWN:
        typer.echo(f"{engine}: and {len(shown) - MAX_SHOWN} further models are not served", err=True)
    return [model for model in listed if model not in reasons]


def _require(engines: list[Engine]) -> None:
    if not engines:
        raise UsageFault("name the engines of the new region: --engine http://127.0.0.1:8000")


def _place(name: str) -> Place:
    from control_plane.quickstart.places import place_named, place_of_machine

    return place_named(name) if name else place_of_machine()


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise UsageFault(f"--host: {text!r} is not an IP address; servers listen on addresses") from None
    if address.version != 4 or address.is_unspecified:
        raise UsageFault(f"--host: {text} cannot be used; name an IPv4 address of the machine")
    return text


def _access(region_dir: RegionDir) -> str:
    """Return the options with which commands reach the control plane."""
    options = f"--url {region_dir.api_url} --token-file {region_dir.admin_token}"
    return options if region_dir.host == LOCAL else f"{options} --ca-file {region_dir.authority / 'ca.crt'}"


def _summary(region_dir: RegionDir, models: list[str], took_s: float) -> str:
    key, model = region_dir.read_api_key(), models[0]
    base = region_dir.base_url
    return f"""
Region {region_dir.region} serves after {took_s:.1f} s. Ctrl-C stops it; the same command continues it.

  base URL  {base}
  API key   {key}
  models    {_names(models)}
  page      {region_dir.api_url}/ui  (sign in with the token in {region_dir.admin_token})
  files     {region_dir.path}: policy/ and the settings of both daemons may be edited

curl {base}/chat/completions -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{base}", api_key="{key}")
print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}]))
"""


def _names(models: list[str]) -> str:
    more = len(models) - MAX_SHOWN
    return ", ".join(models[:MAX_SHOWN]) + (f" and {more} others" if more > 0 else "")


def _joined(region_dir: RegionDir, models: list[str], took_s: float) -> str:
    return f"""
Region {region_dir.region} joined after {took_s:.1f} s. Ctrl-C stops it; run it again to continue.

  base URL  {region_dir.base_url}, with the API key of the first region
  models    {_names(models)}
  files     {region_dir.path}
"""

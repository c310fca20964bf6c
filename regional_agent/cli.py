"""`penstock-agent`: start the agent with the settings of its configuration file and of the environment."""

from __future__ import annotations

import socket
import sys
from random import Random
from typing import Annotated

import typer

from adapters.configuration.config_options import CheckConfigOption, ConfigOption, PrintConfigOption, VersionOption
from adapters.garbage_collection import uncollected

app = typer.Typer(add_completion=False, no_args_is_help=False, rich_markup_mode=None)


@app.command()
def run(
    config: ConfigOption = None,
    check_config: CheckConfigOption = False,
    print_config: PrintConfigOption = False,
    version: VersionOption = False,
    workers: Annotated[
        int | None, typer.Option(show_default=False, help="Number of worker processes on this host. Default: 1.")
    ] = None,
    worker: Annotated[int | None, typer.Option(hidden=True, help="Number of this worker.")] = None,
    traffic_socket: Annotated[int | None, typer.Option(hidden=True, help="Descriptor of the traffic socket.")] = None,
) -> None:
    """Serve one region's GPU pools.

    Settings come from the configuration file and from PENSTOCK_AGENT_* variables, which take precedence: see
    docs/running.md.
    """
    # The modules are imported within `uncollected`, so that the garbage collector does not traverse their objects again
    # and again while they are created.
    with uncollected():
        import structlog
        import uvloop

        from adapters.configuration.config_check import show_config, version_line
        from adapters.configuration.settings_loader import BadSettings, load_with_origins
        from adapters.files.plain_file import UnusableFile
        from adapters.logs import configure_logs
        from adapters.parent_death import end_with_parent
        from regional_agent.config.config_check import config_problems
        from regional_agent.config.settings import PREFIX, AgentSettings
        from regional_agent.daemon import serve
        from regional_agent.workers.supervisor import supervise
        from regional_agent.workers.worker_settings import worker_settings
    if version:
        print(version_line("penstock-agent"))
        return
    configure_logs()
    try:
        flags = {} if workers is None else {"workers": workers}
        loaded = load_with_origins(AgentSettings, PREFIX, config=config, flags=flags)
        settings = loaded.settings
        if show_config(loaded, config_problems, check=check_config, listing=print_config):
            return
        if worker is not None and traffic_socket is not None:
            end_with_parent()
            own = worker_settings(settings, worker)
            structlog.contextvars.bind_contextvars(agent=own.name)
            uvloop.run(serve(own, socket.socket(fileno=traffic_socket)))
        elif settings.workers > 1:
            uvloop.run(supervise(settings, [sys.executable, "-P", "-m", "regional_agent.cli", *sys.argv[1:]], Random()))
        else:
            uvloop.run(serve(settings))
    except (BadSettings, UnusableFile) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


def main() -> None:
    """Run the command `penstock-agent`."""
    app()


if __name__ == "__main__":
    main()

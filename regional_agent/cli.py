"""`penstock-agent`: start the agent with the settings in the environment."""

from __future__ import annotations

import sys

import typer
import uvloop

from control_plane.client.geoip import BadGeoDatabase
from control_plane.client.logs import configure_logs
from control_plane.client.secret_file import BadSecret
from regional_agent.carry.tls import BadTlsFiles
from regional_agent.daemon import serve
from regional_agent.endpoint_file import BadEndpointFile
from regional_agent.settings import BadSettings, load_settings

app = typer.Typer(add_completion=False, no_args_is_help=False, rich_markup_mode=None)


@app.command()
def run() -> None:
    """Serve one region's GPU pools. Settings come from PENSTOCK_AGENT_* variables; docs/running.md has them."""
    configure_logs()
    try:
        settings = load_settings()
        uvloop.run(serve(settings))
    except (BadSettings, BadSecret, BadEndpointFile, BadGeoDatabase, BadTlsFiles) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()

"""`penstock-agent`: start the agent with the settings in the environment."""

from __future__ import annotations

import sys

import typer
import uvloop

from adapters.geoip import BadGeoDatabase
from adapters.logs import configure_logs
from adapters.secret_file import BadSecret
from regional_agent.config.settings import BadSettings, load_settings
from regional_agent.daemon import serve
from regional_agent.endpoints.endpoint_file import BadEndpointFile
from regional_agent.http.tls_contexts import BadTlsFiles

app = typer.Typer(add_completion=False, no_args_is_help=False, rich_markup_mode=None)


@app.command()
def run() -> None:
    """Serve one region's GPU pools. Settings come from PENSTOCK_AGENT_* variables; see docs/running.md."""
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

"""PowerDNS with the shipped configuration, which asks an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from adapters.servers.errors import MissingBinary
from adapters.servers.process import ServerProcess
from lab import debian_packages

SHIPPED = Path(__file__).parents[2] / "deploy" / "dns" / "pdns.conf"


def power_dns(socket: Path, directory: Path, address: str, port: int, changes: Mapping[str, str]) -> ServerProcess:
    """Return a PowerDNS that is not started.

    Args:
        socket: the socket of the agent that answers.
        directory: for its own files.
        address: where it listens.
        changes: settings in place of those of the shipped configuration; an empty value removes one.

    Raises:
        MissingBinary: PowerDNS is not installed.
    """
    program = debian_packages.program("pdns_server")
    if program is None:
        raise MissingBinary("there is no pdns_server; install Debian's pdns-server and pdns-backend-remote")
    modules = [path / "pdns" for path in debian_packages.library_folders() if (path / "pdns").is_dir()]
    settings = {
        "remote-connection-string": f"unix:path={socket},timeout=1000",
        "local-address": address,
        "local-port": str(port),
        "socket-dir": str(directory),
        "daemon": "no",
        "guardian": "no",
        "disable-syslog": "yes",
        **({"module-dir": str(modules[0])} if modules else {}),
        **changes,
    }
    directory.mkdir(parents=True, exist_ok=True)
    shipped = SHIPPED.read_text(encoding="utf-8").splitlines()
    kept = [line for line in shipped if line.partition("=")[0] not in settings]
    lines = [*kept, *(f"{name}={value}" for name, value in settings.items() if value), ""]
    (directory / "pdns.conf").write_text("\n".join(lines), encoding="utf-8")
    return ServerProcess(
        "pdns_server",
        [program, f"--config-dir={directory}"],
        log_path=directory / "log",
        env=debian_packages.environment(),
    )

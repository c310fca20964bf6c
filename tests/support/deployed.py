"""Starts daemons as a deployment does: with command and environment of a unit or manifest, and a service manager."""

from __future__ import annotations

import re
import socket
import sys
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from adapters.servers.process import ServerProcess
from control_plane.settings import PREFIX as CONTROL_PLANE_PREFIX
from control_plane.settings import ControlPlaneSettings
from regional_agent.config.settings import PREFIX as AGENT_PREFIX
from regional_agent.config.settings import AgentSettings
from tests.support.paths import ROOT
from tests.support.wait import PATIENCE_S

SCRIPTS: Mapping[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
"""Module and function of each command that the wheel installs."""

NAMES = {
    f"{prefix}{name.upper()}"
    for prefix, model in ((CONTROL_PLANE_PREFIX, ControlPlaneSettings), (AGENT_PREFIX, AgentSettings))
    for name in (*model.model_fields, "config")
}
"""All environment variables that daemons read."""

# Implements MemoryDenyWriteExecute=: PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN (Linux 6.3).
WITHOUT_WRITABLE_CODE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class DeployedDaemon(ServerProcess):
    """A daemon without memory that is both writable and executable.

    It is ready when it has notified the service manager. The watchdog interval is 100 ms, to keep tests short.

    Args:
        command: command of the unit or manifest, whose program is a command of the wheel.
        environment: the whole environment, except for variables of notifications.
        directory: directory of the log.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        program, *arguments = command
        module, function = SCRIPTS[Path(program).name].split(":")
        # Abstract, because the path of a test's directory may exceed the 107 bytes of a Unix socket address.
        self._address = f"\0penstock-{uuid4().hex}"
        self.states: list[str] = []
        """Notifications that the service manager received."""
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(self._address)
        self._receiving = threading.Thread(target=self._receive)
        self._receiving.start()
        start = f"from {module} import {function} as start; start()"
        super().__init__(
            Path(program).name,
            [sys.executable, "-c", WITHOUT_WRITABLE_CODE, sys.executable, "-c", start, *arguments],
            log_path=directory / "log",
            ready=lambda: "READY=1" in self.states,
            env={
                **environment,
                "PYTHONPATH": str(ROOT),
                "NOTIFY_SOCKET": "@" + self._address[1:],
                "WATCHDOG_USEC": "100000",
            },
        )

    def stop(self, grace_s: float = PATIENCE_S) -> None:
        """Stop the daemon as a service manager does, with a long grace period."""
        super().stop(grace_s)
        if self._receiving.is_alive():
            self._systemd.sendto(b"", self._address)
            self._receiving.join()
        self._systemd.close()

    def _receive(self) -> None:
        while state := self._systemd.recv(1024):
            self.states.append(state.decode())


def replaced(text: str, by: Mapping[str, str]) -> str:
    """Replace each key of `by` with its value, in one pass; longer keys take precedence."""
    return re.sub("|".join(re.escape(key) for key in sorted(by, key=len, reverse=True)), lambda key: by[key[0]], text)

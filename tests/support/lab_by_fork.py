"""`python -m tests.support.lab_by_fork COMMAND`: a command of `penstock-lab` whose programs start by fork."""

from __future__ import annotations

from adapters.servers.process import ServerProcess
from lab.cli import main
from tests.support.fork_server import ForkServer

if __name__ == "__main__":
    ServerProcess.spawn = ForkServer().spawn
    main()

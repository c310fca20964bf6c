"""Runs test files side by side, in processes that are forked after the collection: `pytest -n 6`.

A process that collects the tests takes 12 s of CPU time, so one process does; with pytest-xdist every worker does. A
worker asks for one file after the other, in the order of the collection, and creates session fixtures for itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from adapters.servers.die_with_parent import PR_SET_PDEATHSIG

# A worker sends None to ask for a file, and otherwise the name and the arguments of a hook to call in the main process.
Message = tuple[str, dict[str, Any]] | None
File = list[pytest.Item]
Location = tuple[str, int | None, str]
Test = tuple[str, Location]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `-n`, with the meaning that pytest-xdist gave it. pytest reserves short options to itself."""
    parser.getgroup("workers")._addoption("-n", dest="workers", type=int, default=0, help="processes that run tests")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, where `-n` asks for workers."""
    if not session.config.option.workers or session.config.option.collectonly or session.testsfailed:
        return None
    files: dict[Path, File] = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    _Run(session, list(files.values())).run(session.config.option.workers)
    return True


class _Run:
    """Gives files to workers, and calls the hooks of reports as if the tests ran in this process."""

    def __init__(self, session: pytest.Session, files: Sequence[File]) -> None:
        self._session = session
        self._files = files
        self._left = deque(range(len(files)))
        self._running: dict[Connection, Test] = {}

    def run(self, count: int) -> None:
        """Run every file; raises as pytest's own loop does if a report ends the session.

        Raises:
            session.Failed: a worker ended early; the tests after the one that it ran are not run.
        """
        config = self._session.config
        # The names of files would alternate.
        config.pluginmanager.getplugin("terminalreporter").showfspath = False
        # Otherwise each worker would create a directory of its own, which nothing removes.
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        workers = dict(self._start() for _ in range(min(count, len(self._files))))
        early = 0
        try:
            while workers:
                for ready in wait(list(workers)):
                    assert isinstance(ready, Connection)
                    try:
                        self._answer(ready, ready.recv())
                    except EOFError:
                        worker = workers.pop(ready)
                        worker.join()
                        if worker.exitcode:
                            early += 1
                            self._report_end(ready, worker.exitcode)
        finally:
            for worker in workers.values():
                os.kill(worker.pid, signal.SIGINT)
            for worker in workers.values():
                worker.join()
        if early:
            self._session.shouldfail = f"{early} workers ended early, and tests did not run"
            raise self._session.Failed(self._session.shouldfail)

    def _start(self) -> tuple[Connection, Any]:
        ours, theirs = Pipe()
        worker = get_context("fork").Process(target=_work, args=(self._session, self._files, theirs, os.getpid()))
        worker.start()
        theirs.close()
        return ours, worker

    def _answer(self, worker: Connection, message: Message) -> None:
        config = self._session.config
        if message is None:
            worker.send(self._left.popleft() if self._left else None)
            return
        hook, arguments = message
        if hook == "pytest_runtest_logstart":
            self._running[worker] = (arguments["nodeid"], arguments["location"])
            return
        if hook == "pytest_runtest_logreport":
            arguments = {"report": config.hook.pytest_report_from_serializable(config=config, data=arguments["report"])}
        if hook == "pytest_warning_recorded":
            config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)
        else:
            getattr(config.hook, hook)(**arguments)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _report_end(self, worker: Connection, code: int) -> None:
        """Report a worker that ended early as a failure of the test that it ran."""
        nodeid, location = self._running.get(worker, ("no test", ("", None, "")))
        text = f"the process that ran the test ended with code {code} (negative: a signal)"
        self._session.config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(nodeid, location, {}, "failed", text, "call")
        )


class _Forwarder:
    """Plugin of a worker that sends what a test reports to the main process."""

    def __init__(self, config: pytest.Config, main: Connection) -> None:
        self._config = config
        self._main = main

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._send("pytest_runtest_logstart", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("pytest_runtest_logreport", report=data)

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self._send("pytest_runtest_logfinish", nodeid=nodeid, location=location)

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        # An object that concerns the warning may not be serializable.
        warning_message.source = None
        self._send(
            "pytest_warning_recorded", warning_message=warning_message, when=when, nodeid=nodeid, location=location
        )

    def _send(self, hook: str, **arguments: Any) -> None:
        self._main.send((hook, arguments))


def _work(session: pytest.Session, files: Sequence[File], main: Connection, main_pid: int) -> None:
    """Run the files that the main process names."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != main_pid:
        sys.exit("the main process has ended")
    # A shell starts commands in the background with this signal ignored, and the main process stops its workers by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _separate_output(session.config)
    session.config.pluginmanager.register(_Forwarder(session.config, main))
    try:
        while not session.shouldstop and not session.shouldfail:
            main.send(None)
            number = main.recv()
            if number is None:
                break
            for item, following in zip(files[number], [*files[number][1:], session], strict=True):
                # After the last test of a file only session fixtures stay, whichever file is next.
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except KeyboardInterrupt:
        # A terminal and the main process each send one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        session._setupstate.teardown_exact(None)


def _separate_output(config: pytest.Config) -> None:
    """Capture output in files of this process, and discard what its terminal reporter prints."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    discard = os.open(os.devnull, os.O_WRONLY)
    os.dup2(discard, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    os.close(discard)
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=False)

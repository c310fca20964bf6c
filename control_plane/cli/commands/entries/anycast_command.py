"""`penstock anycast`: announces an anycast prefix while agents accept clients, as a process of ExaBGP."""

from __future__ import annotations

import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import httpx
import typer

from adapters.files.tls_files import load_authorities
from control_plane.cli.error_output import UsageFault, exit_on_error, print_error
from penstock.health.anycast_announcement import Announcement, AnnouncementState, DampingRules, check

WEIGHT_HEADER = "x-penstock-weight"
"""Header of `/readyz` of agents: part (0-1) of its usual clients that the region should attract."""

MED_PER_WEIGHT = 100
"""Amount by which the MED of a region without weight exceeds that of a region with its full weight."""

TIMEOUT_S = 0.2
"""Maximum time (s) of one check: an agent that is frozen is withdrawn within a second."""


def anycast(
    prefixes: Annotated[list[str], typer.Argument(help="Prefixes to announce, such as 192.0.2.0/24.")],
    ready_urls: Annotated[
        list[str],
        typer.Option(
            "--ready-url",
            help="URL that answers 200 while clients may come, such as http://127.0.0.1:8082/readyz of the agent;"
            " repeatable: all of them have to.",
        ),
    ],
    ca_file: Annotated[Path | None, typer.Option(help="PEM file of the authorities of https URLs.")] = None,
    next_hop: Annotated[str, typer.Option(help="Next hop of the routes.")] = "self",
    med: Annotated[
        int, typer.Option(min=0, max=2**31, help="MED of the routes while the region has its full weight.")
    ] = 100,
    communities: Annotated[
        list[str] | None, typer.Option("--community", help="Community of the routes, such as 65000:1; repeatable.")
    ] = None,
    every_s: Annotated[float, typer.Option("--every", min=0.05, help="Time (s) between two checks.")] = 0.2,
    hold_s: Annotated[
        float,
        typer.Option("--hold", min=0.0, help="Time (s) of readiness before an announcement; withdrawals double it."),
    ] = 2.0,
) -> None:
    """Announce prefixes while every --ready-url answers 200, and withdraw them otherwise. Started by ExaBGP.

    A drained region, and one whose agent shuts down, is withdrawn at the next check; one that does not answer, after
    three checks. Stderr has the reason. The MED rises by up to 100 while the region returns after a failure. The
    process ends with ExaBGP.
    """
    with exit_on_error("anycast"):
        if not all(url.startswith(("http://", "https://")) for url in ready_urls):
            raise UsageFault("--ready-url: write URLs that begin with http:// or https://")
        tls = ssl.create_default_context()
        if ca_file is not None:
            load_authorities(tls, ca_file)
        suffix = f" community [{' '.join(communities)}]" if communities else ""
        routes = [f"route {prefix} next-hop {next_hop}" for prefix in prefixes]
        with httpx.Client(timeout=TIMEOUT_S, verify=tls, trust_env=False) as client:
            announcer = _Announcer(routes, suffix, med, DampingRules(hold_s=hold_s))
            announcer.run(lambda: _weight(client, ready_urls), every_s)


class _Announcer:
    """Writes commands to ExaBGP, its parent."""

    def __init__(self, routes: list[str], attributes: str, med: int, rules: DampingRules) -> None:
        self._routes = routes
        self._attributes = attributes
        self._med = med
        self._rules = rules
        self._prefix = Announcement()
        self._announced_med: int | None = None
        self._reported = ""
        """Why the prefix is withdrawn, as last reported."""
        self._ended = threading.Event()

    def run(self, weight: Callable[[], tuple[float | None, str]], every_s: float) -> None:
        """Check and announce until ExaBGP ends or the process is stopped; `weight` is that of `_weight`."""
        signal.signal(signal.SIGTERM, lambda *_: self._ended.set())
        # ExaBGP answers each command and closes the pipe at its end.
        threading.Thread(target=self._read_answers, daemon=True).start()
        # ExaBGP still announces what a process announced that it has started again.
        self._withdraw(always=True)
        while not self._ended.is_set():
            began = time.monotonic()
            self._apply(*weight(), began)
            self._ended.wait(max(0.0, began + every_s - time.monotonic()))
        self._withdraw()

    def _apply(self, weight: float | None, why: str, now: float) -> None:
        before = self._prefix
        self._prefix = check(before, None if weight is None else weight > 0.0, now, self._rules)
        if self._prefix.state is not before.state:
            print_error("anycast", f"{before.state.value} -> {self._prefix.state.value}")
        if self._prefix.state is AnnouncementState.ANNOUNCED:
            self._reported = ""
        elif why and why != self._reported:
            print_error("anycast", why)
            self._reported = why
        if self._prefix.state is not AnnouncementState.ANNOUNCED:
            self._withdraw()
        elif weight is not None:
            self._announce(self._med + round((1.0 - min(1.0, weight)) * MED_PER_WEIGHT))

    def _announce(self, med: int) -> None:
        if med != self._announced_med:
            for route in self._routes:
                self._write(f"announce {route} med {med}{self._attributes}")
            self._announced_med = med

    def _withdraw(self, *, always: bool = False) -> None:
        if always or self._announced_med is not None:
            for route in self._routes:
                self._write(f"withdraw {route}")
            self._announced_med = None

    def _write(self, command: str) -> None:
        try:
            print(command, flush=True)
        except OSError:
            self._ended.set()

    def _read_answers(self) -> None:
        for _ in sys.stdin:
            pass
        self._ended.set()


def _weight(client: httpx.Client, urls: list[str]) -> tuple[float | None, str]:
    """The smallest weight that the URLs state; 0 if one is not ready, None if one does not answer. And why it is not 1,
    for operators."""
    weights = []
    for url in urls:
        try:
            response = client.get(url)
        except httpx.HTTPError as error:
            return None, f"{url} does not answer: {error}"
        if response.status_code != HTTPStatus.OK:
            return 0.0, f"{url} answers {response.status_code}"
        stated = response.headers.get(WEIGHT_HEADER, "1")
        try:
            weights.append(float(stated))
        except ValueError:
            weights.append(0.0)
        if not weights[-1] > 0.0:
            return 0.0, f"{url} answers {WEIGHT_HEADER}: {stated}"
    return min(weights), ""

"""Prints the progress of a run: a line for each event, and a line of counts at intervals."""

from __future__ import annotations

from rich.console import Console

from lab.demo.tally import Now

EVERY_S = 5.0
"""Interval (s) of the lines of counts."""


class Screen:
    """Prints the progress of one run. The operators' page of the fleet shows the same in detail."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = float("-inf")

    def starting(self, done: int, steps: int) -> None:
        """Report the number of completed steps of the fleet's start."""
        if done == 1:
            self._print("starting etcd, Redis, control planes, agents, engines and the WAN emulator")
        if done == steps:
            self._print("the fleet is up")

    def event(self, at_s: float, text: str, style: str = "") -> None:
        """Print an event."""
        self._print(f"{at_s:6.1f} s  {text}", style)

    def show(self, now: Now) -> None:
        """Print the counts at one time, if enough time has passed since the last."""
        if now.at_s - self._shown_s < EVERY_S:
            return
        self._shown_s = now.at_s
        away = ", ".join(f"{home} > {server} {count}" for (home, server), count in now.away.most_common())
        ttft = f"; first token {now.ttft_p50_ms:.0f} ms" if now.ttft_p50_ms is not None else ""
        self._print(
            f"{now.at_s:6.1f} s  {now.phase}: {now.answered} answered, {now.refused} refused, {now.failed} failed, "
            f"{now.violations} violations; {now.images_answered} of {now.images_asked} images answered{ttft}"
            + (f"; away from home: {away}" if away else "")
        )

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)

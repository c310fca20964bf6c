"""Shows a run while it happens: a live display on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lab.demo.tally import Now, RegionNow

COLOURS = ("dodger_blue2", "dark_orange", "medium_purple", "deep_pink3", "dark_cyan")
"""Colours of the regions in alphabetical order, similar to the colours of the page."""

KEPT_LINES = 9
PLAIN_EVERY_S = 5.0

STATE_STYLES = {"serving": "green", "dead": "bold red", "starting": "yellow", "returning": "yellow"}


class Screen(Protocol):
    """Displays the progress of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def starting(self, step: str, done: int, steps: int) -> None:
        """Display a completed step of the fleet's start."""

    def event(self, at_s: float | None, text: str, style: str = "") -> None:
        """Display an event."""

    def show(self, now: Now) -> None:
        """Display the figures of the fleet at one time."""


def make_screen(console: Console, regions: Sequence[str], duration_s: float) -> Screen:
    """Return a LiveScreen for a terminal, else a PlainScreen."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveScreen(console, regions, duration_s)
    return PlainScreen(console)


class PlainScreen:
    """Prints a line for each event, and a line of counts every PLAIN_EVERY_S."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def starting(self, step: str, done: int, steps: int) -> None:
        """See Screen."""
        if done == 1:
            self._print("starting etcd, Redis, control planes, agents, engines and the WAN emulator")
        if done == steps:
            self._print("the fleet is up")

    def event(self, at_s: float | None, text: str, style: str = "") -> None:
        """See Screen."""
        self._print(text if at_s is None else f"{at_s:6.1f} s  {text}")

    def show(self, now: Now) -> None:
        """See Screen."""
        if now.at_s - self._shown_s >= PLAIN_EVERY_S:
            self._shown_s = now.at_s
            away = ", ".join(f"{home} > {server} {n}" for home, server, n in flows(now))
            self._print(
                f"{now.at_s:6.1f} s  {now.phase}: {now.answered} answered, {now.refused} refused, {now.failed} failed, "
                f"{now.violations} violations; {images_text(now)}" + (f"; away from home: {away}" if away else "")
            )

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class LiveScreen:
    """Redraws a live display of regions, flows between regions, progress, and the latest events."""

    def __init__(self, console: Console, regions: Sequence[str], duration_s: float) -> None:
        self._colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(regions))}
        self._duration_s = duration_s
        self._lines: deque[Text] = deque(maxlen=KEPT_LINES)
        self._head: RenderableType = Text("starting")
        self._body: RenderableType = Text("")
        self._live = Live(self._picture(), console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def starting(self, step: str, done: int, steps: int) -> None:
        """See Screen."""
        bar = ProgressBar(total=steps, completed=done, width=40)
        self._head = _row(Text("Penstock", style="bold"), Text("starting the fleet"), bar, Text(step, style="dim"))
        self._draw()

    def event(self, at_s: float | None, text: str, style: str = "") -> None:
        """See Screen."""
        line = Text(f"{at_s:6.1f} s  " if at_s is not None else " " * 10, style="dim")
        self._lines.append(line.append(text, style=style or "default"))
        self._draw()

    def show(self, now: Now) -> None:
        """See Screen."""
        bar = ProgressBar(total=self._duration_s, completed=min(now.at_s, self._duration_s), width=40)
        time = Text(f"{now.at_s:5.1f} / {self._duration_s:.0f} s", style="dim")
        self._head = _row(Text("Penstock", style="bold"), Text(now.phase, style="bold cyan"), bar, time)
        regions = Columns([self._region(region) for region in now.regions], padding=(0, 1))
        self._body = Group(regions, self._flows(now), _counts(now))
        self._draw()

    def _draw(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        return Group(self._head, Text(""), self._body, Text(""), *self._lines)

    def _region(self, region: RegionNow) -> Panel:
        bar = Text()
        for home in sorted(region.recent, key=lambda name: (name != region.name, name)):
            bar.append("█" * region.recent[home], style=self._colours[home])
        bar.truncate(20)
        inside = Group(
            Text(region.city, style="dim"),
            Text(region.state, style=STATE_STYLES.get(region.state, "")),
            bar if bar.plain else Text("·", style="dim"),
            Text(f"{region.running} running"),
            Text(f"{region.own} own, {region.others} foreign", style="dim"),
        )
        border = "red" if region.state == "dead" else self._colours[region.name]
        title = Text(region.name, style=f"bold {self._colours[region.name]}")
        return Panel(inside, title=title, border_style=border, width=24)

    def _flows(self, now: Now) -> Text:
        line = Text("away from home: ", style="dim")
        found = flows(now)
        for home, server, n in found:
            line.append(home, style=self._colours[home]).append(" ──▶ ", style="dim")
            line.append(server, style=self._colours[server]).append(f" {n}   ", style="bold")
        return line if found else line.append("none")


def flows(now: Now) -> list[tuple[str, str, int]]:
    """Return the recent requests served outside their home region: home, server, count; the largest count first."""
    found = [
        (home, region.name, n) for region in now.regions for home, n in region.recent.items() if home != region.name
    ]
    return sorted(found, key=lambda flow: (-flow[2], flow))


def images_text(now: Now) -> str:
    """Return the counts of image jobs as text."""
    images = now.images
    unanswered = f", {images.unanswered} unanswered" if images.unanswered else ""
    return f"{images.answered} of {images.asked} images answered{unanswered}"


def _row(*cells: RenderableType) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(*cells)
    return table


def _counts(now: Now) -> Text:
    line = Text(f"{now.answered} answered", style="green").append(f" of {now.asked}   ", style="dim")
    line.append(f"{now.refused} refused   ", style="yellow" if now.refused else "dim")
    line.append(f"{now.failed} failed   ", style="red" if now.failed else "dim")
    line.append(f"{now.violations} residency violations   ", style="bold red" if now.violations else "green")
    if now.ttft_p50_ms is not None:
        line.append(f"first token {now.ttft_p50_ms:.0f} ms   ", style="dim")
    line.append(images_text(now), style="red" if now.images.unanswered else "dim")
    return line

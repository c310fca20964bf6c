"""What the drivers measured: the file of results, and the printed tables."""

from __future__ import annotations

from statistics import median

import msgspec
from rich.table import Table

from lab.bench.bench_results import Machine, table
from lab.bench.live.bench_live_report import PENSTOCK, System
from lab.bench.outside.driver import DriverRun

SHOWN = (
    *("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p50_s", "tpot_p99_s"),
    *("e2e_mean_s", "e2e_p50_s", "e2e_p99_s"),
)


class Rounds(msgspec.Struct):
    """The runs of one system in one contest."""

    system: str
    runs: list[DriverRun]
    load_averages: list[float]
    """Load average (1 min) of the machine at the end of each run."""
    problem: str = ""
    """Why runs are missing."""

    def figure(self, name: str) -> float | None:
        """Return the median of a figure over the rounds; None without one."""
        values = [run.figures[name] for run in self.runs if name in run.figures]
        return median(values) if values else None


class Contest(msgspec.Struct):
    """All systems with one workload and one driver."""

    workload: str
    driver: str
    engines: str
    """Kind and number of the engines."""
    rate_per_s: float | None
    """None for sessions, whose rate depends on how fast they are answered."""
    load: float | None
    """Share of the engines' capacity; None where it is not known."""
    systems: list[Rounds]
    sessions: int = 0
    """Number of sessions; 0 for requests at given times."""

    @property
    def name(self) -> str:
        """Name of files about it."""
        return f"{self.workload}-{self.driver}"

    @property
    def title(self) -> str:
        """Description in one line."""
        share = "" if self.load is None else f", {self.load:.0%} of capacity"
        demand = f"{self.sessions} sessions" if self.rate_per_s is None else f"{self.rate_per_s:.1f}/s"
        return f"{self.workload}, {demand}{share}, {self.engines}, measured by {self.driver}"


class Results(msgspec.Struct, frozen=True):
    """The content of the file of results."""

    machine: Machine
    drivers: dict[str, str]
    """Version by name."""
    options: dict[str, str]
    systems: list[System]
    contests: list[Contest]


def best_other(contest: Contest, name: str) -> tuple[float, str] | None:
    """Return the lowest figure of the other systems and its system; None without one."""
    others = [
        (value, rounds.system)
        for rounds in contest.systems
        if rounds.system != PENSTOCK and (value := rounds.figure(name)) is not None
    ]
    return min(others, default=None)


def to_best(contest: Contest, name: str) -> float | None:
    """Return Penstock's figure divided by the best other's; None if either is missing or the other is 0."""
    own = next((rounds.figure(name) for rounds in contest.systems if rounds.system == PENSTOCK), None)
    best = best_other(contest, name)
    return None if own is None or best is None or best[0] <= 0.0 else own / best[0]


def label(name: str) -> str:
    """Return the name of a figure as shown, such as `ttft p50`."""
    return name.removesuffix("_s").replace("_", " ")


def cell(name: str, value: float | None) -> str:
    """Return a figure in s as shown."""
    return "-" if value is None else f"{value:.4f}" if name.startswith("tpot") else f"{value:.2f}"


def contest_table(contest: Contest) -> Table:
    """Return the figures of a contest in s, and the ratio of Penstock's to the best other system's."""
    rows = []
    for rounds in contest.systems:
        cells = [cell(name, rounds.figure(name)) for name in SHOWN]
        errors = sum(run.errors for run in rounds.runs)
        rows.append((rounds.system, *cells, str(errors), f"{max(rounds.load_averages, default=0.0):.0f}"))
    ratios = ["-" if (ratio := to_best(contest, name)) is None else f"{ratio:.2f}" for name in SHOWN]
    header = ("", *(label(name) for name in SHOWN), "errors", "load")
    return table(contest.title, header, [*rows, ("penstock / best other", *ratios, "", "")])

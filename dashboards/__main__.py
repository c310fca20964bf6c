"""Write the generated dashboard and rules, or with --check say how the committed ones differ."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

from dashboards.alerts import ALERTS
from dashboards.boards.agents_board import AGENTS
from dashboards.boards.capacity_board import CAPACITY
from dashboards.boards.control_plane_board import CONTROL_PLANE
from dashboards.boards.fleet_board import FLEET
from dashboards.boards.jobs_board import JOBS
from dashboards.boards.pools_board import POOLS
from dashboards.boards.region_board import REGION
from dashboards.boards.residency_board import RESIDENCY
from dashboards.boards.spillover_board import SPILLOVER
from dashboards.boards.tenants_board import TENANTS
from dashboards.notifications import alertmanager_file
from dashboards.recording_rules import RECORDINGS
from dashboards.rules import rules_file

BOARDS = (FLEET, REGION, POOLS, CAPACITY, RESIDENCY, SPILLOVER, TENANTS, JOBS, CONTROL_PLANE, AGENTS)

GENERATED = Path(__file__).parent / "generated"


def generate() -> dict[str, str]:
    """Every generated file by name."""
    return {
        **{f"{board.name}.json": board.as_json() for board in BOARDS},
        "rules.yaml": rules_file({"penstock-recordings": RECORDINGS, "penstock-alerts": ALERTS}),
        "alertmanager.yaml": alertmanager_file(),
    }


def stale(directory: Path) -> list[str]:
    """How the files in `directory` differ from what would be generated, as lines of a diff; none when fresh."""
    differences: list[str] = []
    for name, fresh in generate().items():
        path = directory / name
        committed = path.read_text(encoding="utf-8") if path.exists() else ""
        differences += unified_diff(
            committed.splitlines(), fresh.splitlines(), f"committed/{name}", f"generated/{name}", lineterm=""
        )
    return differences


def main(arguments: Sequence[str] | None = None, directory: Path = GENERATED) -> int:
    """Returns the exit code: 1 when --check finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff if a file is stale")
    if parser.parse_args(arguments).check:
        differences = stale(directory)
        if differences:
            print("\n".join(differences))
            print("Stale: run `python -m dashboards` and commit what it writes.", file=sys.stderr)
        return 1 if differences else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in generate().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

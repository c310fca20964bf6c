"""The report: the version of each engine and client, and the result of each case."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

from tests.engines.suite import Result


class Report:
    """Prints each result and rewrites the file, so that an interrupted run leaves a report of the finished cases."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._subjects: dict[str, dict[str, Any]] = {}
        self._started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.failed = 0
        self.passed = 0
        self.not_offered = 0

    def begin(self, subject: str, versions: dict[str, str]) -> None:
        """An engine or client is installed."""
        self._subjects[subject] = {"run": True, "versions": versions, "cases": {}}
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        print(f"{subject} ({listed})", flush=True)
        self._write()

    def not_run(self, subject: str, reason: str) -> None:
        """An engine or client cannot be installed or started."""
        self._subjects.setdefault(subject, {"versions": {}, "cases": {}}).update(run=False, reason=reason)
        print(f"{subject}: cannot be run: {reason}", flush=True)
        self._write()

    def add(self, subject: str, name: str, result: Result) -> None:
        """A case has ended."""
        self.passed += result.outcome == "passed"
        self.failed += result.outcome == "failed"
        self.not_offered += result.outcome == "not offered"
        self._subjects[subject]["cases"][name] = {key: value for key, value in result._asdict().items() if value != ""}
        reason = f": {result.reason}" if result.reason else ""
        print(f"  {result.outcome:<11}  {name} ({result.seconds:.1f} s){reason}", flush=True)
        self._write()

    def summary(self) -> str:
        """One line."""
        missing = [name for name, subject in self._subjects.items() if not subject["run"]]
        return (
            f"{self.passed} cases passed, {self.failed} failed, {self.not_offered} not offered"
            + (f"; not run: {', '.join(missing)}" if missing else "")
            + f"; see {self._file}"
        )

    def _write(self) -> None:
        machine = {"python": platform.python_version(), "system": platform.platform()}
        report = {"started_at": self._started_at, "machine": machine, "subjects": self._subjects}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(report, indent=2) + "\n")

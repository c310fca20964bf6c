"""The common part of the clients' scripts, which run in the clients' virtual environment, without Penstock.

`script.py FILE NAME...` reads what the cases need from a JSON file, runs those whose names contain a NAME, or all, and
writes one JSON line for each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CASES: list[Callable[[], None]] = []


class Failed(Exception):
    """A case failed."""


class NotOffered(Exception):
    """A case needs what the client, the engine or Penstock does not offer."""


def case(run: Callable[[], None]) -> Callable[[], None]:
    """Adds a function to the cases of the script."""
    CASES.append(run)
    return run


def expect(condition: object, otherwise: object) -> None:
    """Raises Failed with `otherwise` unless the condition is true."""
    if not condition:
        raise Failed(str(otherwise))


@contextmanager
def raises(expected: type[Exception], status: int, code: str = "") -> Iterator[None]:
    """Expects an exception with that status, and with that code of Penstock's in its `code`, body or text."""
    try:
        yield
    except expected as error:
        expect(getattr(error, "status_code", None) == status, f"{type(error).__name__} has the status of {error}")
        exposed = (getattr(error, "code", None), getattr(error, "body", None), error)
        expect(any(code in str(each) for each in exposed), f"the exception does not have {code}: {exposed}")
    else:
        raise Failed(f"no {expected.__name__}")


def asked() -> dict[str, Any]:
    """The inputs of the cases: `url`, `key`, `limited_key` and its tenant, `retry_after_s`, `access_log`, `models`."""
    found: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return found


def arrived(at_least: int) -> list[int]:
    """Statuses of the requests with the limited key in the access log of the agent, which has them within a second."""
    tenant = asked()["limited_tenant"]
    deadline = time.monotonic() + 5.0
    while True:
        lines = [json.loads(line) for line in Path(asked()["access_log"]).read_text().splitlines()]
        statuses = [line["status"] for line in lines if line["tenant"] == tenant]
        if len(statuses) >= at_least or time.monotonic() > deadline:
            return statuses
        time.sleep(0.1)


def _result(run: Callable[[], None]) -> dict[str, object]:
    began = time.monotonic()
    outcome, reason = "passed", ""
    try:
        run()
    except NotOffered as missing:
        outcome, reason = "not offered", str(missing)
    except Failed as failure:
        outcome, reason = "failed", str(failure)
    except Exception as error:
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
    title = (run.__doc__ or "").strip().split("\n")[0].rstrip(".")
    seconds = round(time.monotonic() - began, 1)
    return {"name": run.__name__, "title": title, "outcome": outcome, "seconds": seconds, "reason": reason}


def main() -> None:
    """Runs the cases."""
    names = sys.argv[2:]
    for run in CASES:
        if not names or any(name in run.__name__ for name in names):
            print(json.dumps(_result(run)), flush=True)

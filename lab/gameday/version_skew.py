"""An engine that serves another revision than policy expects, and therefore receives no requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import yaml

from lab.demo.findings import Measured
from lab.gameday.fault_injection import put_faults
from lab.gameday.policy_change import change_policy, statuses
from lab.gameday.workers import Workers
from lab.planet.bundle import MODELS_FILE
from lab.planet.configs import url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, engine_port
from penstock.health.revision_history import HOLD_S

WRONG_REVISION = "llama-3.1-8b-of-last-week"

SEEN_WITHIN_S = 8.0
"""Maximum time (s) until the skew is reported: agents query a ready engine's models each 5 s."""

GONE_WITHIN_S = HOLD_S + SEEN_WITHIN_S
"""Maximum time (s) until the skew is gone after its end."""

LEAD_S = 7.0
LOOK_EVERY_S = 0.5


class VersionSkew:
    """A fault in which an engine restarts with other weights under the same name."""

    def __init__(self, region: str, endpoint: str) -> None:
        self._region, self._endpoint = region, endpoint
        self._restore: Callable[[], None] = lambda: None
        self._watch: Workers | None = None
        self._planet: Planet | None = None
        self._began_at = 0.0
        self._seen_s: float | None = None
        self._gone_s: float | None = None
        self._skew = ""
        self._lifted_at = 0.0

    def prepare(self, planet: Planet) -> float:
        """Publish a policy that expects a revision and refuses others; return the time (s) until the fault begins.

        Raises:
            ServerError: an agent does not apply the policy in time.
        """
        self._planet, self._seen_s, self._gone_s, self._skew = planet, None, None, ""
        self._began_at = self._lifted_at = 0.0
        self._restore = change_policy(planet, {MODELS_FILE: expecting_models})
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Let the engine report another revision; return the end."""
        place = url(planet.ports[engine_port(self._region, self._endpoint)])
        put_faults(place, {"revision": WRONG_REVISION})
        self._began_at = time.monotonic()
        self._watch = Workers(self._look)

        def end() -> None:
            put_faults(place, {})
            self._lifted_at = time.monotonic()

        return end

    def conclude(self) -> Measured:
        """Wait until the skew is no longer reported, restore the policy, and return whether it was reported in time."""
        assert self._watch is not None
        while self._gone_s is None and time.monotonic() < self._lifted_at + GONE_WITHIN_S:
            time.sleep(LOOK_EVERY_S)
        self._watch.stop()
        self._restore()
        return judge_skew(self._seen_s, self._gone_s, self._skew)

    def _look(self, stopped: threading.Event) -> None:
        assert self._planet is not None
        while not stopped.wait(LOOK_EVERY_S):
            skews = [
                endpoint["skew"]
                for status in statuses(self._planet).values()
                for endpoint in status.get("endpoints", ())
                if endpoint["name"] == self._endpoint
            ]
            now = time.monotonic()
            if self._seen_s is None and skews and all(skews):
                self._seen_s, self._skew = now - self._began_at, skews[0]
            elif self._lifted_at and self._gone_s is None and skews and not any(skews):
                self._gone_s = now - self._lifted_at


def judge_skew(seen_s: float | None, gone_s: float | None, skew: str) -> Measured:
    """Return 1 if the skew was reported in time, with both revisions, and was gone in time after the end; else 0."""
    is_named = WRONG_REVISION in skew and CHAT_8B in skew
    limits = ((seen_s, SEEN_WITHIN_S), (gone_s, GONE_WITHIN_S))
    holds = is_named and all(took_s is not None and took_s <= most_s for took_s, most_s in limits)
    seen, gone = ("never" if took_s is None else f"after {took_s:.1f} s" for took_s in (seen_s, gone_s))
    limit = f"at most {SEEN_WITHIN_S:g} and {GONE_WITHIN_S:g} s"
    says = f"the skew was reported {seen}, and gone {gone} ({limit}): {skew or 'nothing'}"
    return Measured(int(holds), says)


def expecting_models(documents: str) -> str:
    """Return the policy file of the models, with the revision that engines of CHAT_8B must report."""
    models = list(yaml.safe_load_all(documents))
    for model in models:
        if model["name"] == CHAT_8B:
            model |= {"expected_revision": CHAT_8B, "refuse_skewed": True}
    return yaml.safe_dump_all(models, sort_keys=False)

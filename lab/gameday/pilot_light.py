"""The loss of an active region whose demand a pilot light takes over: its order, its endpoints, and the way home."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lab.demo.findings import Measured
from lab.gameday.credential_faults import leader_of
from lab.gameday.fault_injection import freeze_leader, kill_region
from lab.gameday.policy_change import change_policy
from lab.gameday.workers import Workers
from lab.planet.bundle import MODELS_FILE, REGIONS_FILE, SPILLOVER_FILE
from lab.planet.configs import control_plane_urls, url
from lab.planet.planet import ASK_TIMEOUT_S, Planet, ask
from lab.planet.topology import CHAT_8B, engine_port

COLD_START_S = 3.0
"""Time (s) from an order until the endpoint serves."""

AUTOSCALER_EVERY_S = 0.5
"""Interval (s) at which the autoscaler reads the recommendation."""

ORDERED_WITHIN_S = 6.0
HOME_WITHIN_S = 60.0
"""Maximum time (s) from the return of the lost region until the takeover is over, the failback ramp included."""

AT_HOME_S = 5.0
"""Time (s) at home in which the requests of the standby region are counted."""

LEAD_S = 12.0
"""Time (s) from the policy to the fault, in which the traffic leaves the standby region."""

TARGET_UTILISATION = 0.3
"""Share (0-1) of the slots that the day's policy fills. The demand of the lost region then asks for more than one
endpoint in each run: it is 1.3 to 3.3 requests per second, as a new leader has measured it."""

FROZEN_S = 4.0
"""Time (s) for which the leader stands, so that another one leads: recommendations fall after ten minutes only."""


class TakeoverDay(NamedTuple):
    """What was measured of a takeover; times are seconds, None for what did not happen."""

    at_rest_per_s: float
    """Requests of the standby region per second before the loss."""
    ordered_s: float | None
    """Time from the loss until more endpoints were recommended."""
    ready_s: float | None
    """Time from the loss until the ordered endpoint served."""
    reported_s: float | None
    """Time from the order until all endpoints were ready, as the control plane reports it."""
    during_per_s: float
    home_s: float | None
    """Time from the return of the region until the takeover was over, the failback ramp included."""
    home_per_s: float


class PilotLight:
    """Kills an active region while a standby region has one endpoint, and adds another one when that is ordered."""

    def __init__(self, lost: str, standby: str, spare: str) -> None:
        """Create the fault.

        Args:
            spare: the endpoint of the standby region that its agent does not know until it is ordered.
        """
        self._lost, self._standby, self._spare = lost, standby, spare
        self._autoscaler: Workers | None = None
        self._restore: Callable[[], None] = lambda: None
        self._planet: Planet | None = None
        self._endpoints = ""
        """The endpoints file of the standby region before the day."""
        self._lost_at = self._ended_at = 0.0
        self._ordered_at = self._ready_at = self._home_at = 0.0
        self._counts: dict[str, tuple[float, float]] = {}
        """Time (s) and number of the answers of the standby region, by moment."""

    def prepare(self, planet: Planet) -> float:
        """Make the region a pilot light without its spare endpoint; return the time (s) until the fault begins.

        Raises:
            ServerError: an agent does not apply the policy in time.
        """
        self._planet, self._counts = planet, {}
        self._lost_at = self._ordered_at = self._ready_at = self._home_at = 0.0
        self._endpoints = self._file().read_text()
        self._file().write_text(without_endpoint(self._endpoints, self._spare))
        changes = {
            REGIONS_FILE: lambda text: pilot_light_regions(text, self._standby),
            MODELS_FILE: lambda text: limited_models(text, self._models()),
            SPILLOVER_FILE: roomy_spillover,
        }
        self._restore = change_policy(planet, changes)
        resume = freeze_leader(planet)
        time.sleep(FROZEN_S)
        resume()
        self._autoscaler = Workers(self._scale)
        self._counts["policy"] = self._counted()
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Kill the region; return the end, which starts the region again."""
        self._counts["loss"] = self._counted()
        self._lost_at = time.monotonic()
        end = kill_region(self._lost)(planet)

        def lift() -> None:
            self._counts["return"] = self._counted()
            end()
            self._ended_at = time.monotonic()

        return lift

    def conclude(self) -> Measured:
        """Wait until the takeover is over, restore the policy and the endpoints, and return what was measured."""
        assert self._planet is not None
        assert self._autoscaler is not None
        until, reported_s = self._ended_at + HOME_WITHIN_S, None
        while not self._home_at and time.monotonic() < until:
            takeover = self._asked("/v1/capacity/takeover").get("takeover") or {}
            reported_s = takeover.get("ready_after_s")
            if takeover.get("ended_after_s"):
                self._home_at = time.monotonic()
            time.sleep(AUTOSCALER_EVERY_S)
        home = self._counted()
        time.sleep(AT_HOME_S)
        self._counts["home"], self._counts["end"] = home, self._counted()
        self._autoscaler.stop()
        self._restore()
        self._file().write_text(self._endpoints)
        return judge_takeover(
            TakeoverDay(
                self._per_s("policy", "loss"),
                self._since_loss(self._ordered_at),
                self._since_loss(self._ready_at),
                reported_s,
                self._per_s("loss", "return"),
                self._home_at - self._ended_at if self._home_at else None,
                self._per_s("home", "end"),
            )
        )

    def _scale(self, stopped: threading.Event) -> None:
        """Add the spare endpoint a cold start after more endpoints are recommended than the region has."""
        while not stopped.wait(AUTOSCALER_EVERY_S):
            items = self._asked(f"/v1/capacity/recommendations?region={self._standby}&model={CHAT_8B}").get("items")
            now = time.monotonic()
            if (
                self._lost_at
                and not self._ordered_at
                and items
                and items[0]["desired_endpoints"] > items[0]["endpoints"]
            ):
                self._ordered_at = now
            elif self._ordered_at and not self._ready_at and now - self._ordered_at >= COLD_START_S:
                self._file().write_text(self._endpoints)
                self._ready_at = now

    def _file(self) -> Path:
        assert self._planet is not None
        return self._planet.directory / f"{self._standby}-endpoints.yaml"

    def _asked(self, path: str) -> dict[str, Any]:
        assert self._planet is not None
        where = control_plane_urls(self._planet.topology, self._planet.ports)[leader_of(self._planet)]
        return ask(where + path, self._planet.admin_token) or {}

    def _models(self) -> Counter[str]:
        """The engines of the standby region by model."""
        assert self._planet is not None
        return Counter(engine.model for engine in self._planet.topology.region(self._standby).engines)

    def _engines(self) -> list[str]:
        assert self._planet is not None
        region = self._planet.topology.region(self._standby)
        return [engine.name for engine in region.engines if engine.model == CHAT_8B]

    def _place(self, engine: str) -> str:
        assert self._planet is not None
        return url(self._planet.ports[engine_port(self._standby, engine)])

    def _counted(self) -> tuple[float, float]:
        return time.monotonic(), sum(_answers(self._place(engine)) for engine in self._engines())

    def _per_s(self, first: str, second: str) -> float:
        (began, before), (ended, after) = self._counts[first], self._counts[second]
        return (after - before) / max(1e-3, ended - began)

    def _since_loss(self, at: float) -> float | None:
        return at - self._lost_at if at else None


def judge_takeover(day: TakeoverDay) -> Measured:
    """Return ten times the rate of requests of the standby region during the loss, 0 if a promise was broken.

    The standby region is ordered in time, its endpoint is added, it serves, and its traffic goes home.
    """
    holds = (
        day.ordered_s is not None
        and day.ordered_s <= ORDERED_WITHIN_S
        and day.ready_s is not None
        and day.home_s is not None
        and day.home_per_s < day.during_per_s
    )
    says = (
        f"ordered after {_s(day.ordered_s)} (at most {ORDERED_WITHIN_S:g} s), the endpoint is added after "
        f"{_s(day.ready_s)} with a cold start of {COLD_START_S:g} s, as reported {_s(day.reported_s)} after the order; "
        f"home {_s(day.home_s)} after the return (at most {HOME_WITHIN_S:g} s); requests per second in the standby "
        f"region: {day.at_rest_per_s:.1f} before, {day.during_per_s:.1f} during the loss, {day.home_per_s:.1f} at home"
    )
    return Measured(round(10.0 * day.during_per_s) if holds else 0, says)


def pilot_light_regions(documents: str, standby: str) -> str:
    """Return the policy file of the regions, of which one is a pilot light."""
    regions = list(yaml.safe_load_all(documents))
    for region in regions:
        if region["name"] == standby:
            region["role"] = "pilot_light"
    return yaml.safe_dump_all(regions, sort_keys=False)


def limited_models(documents: str, engines: Mapping[str, int]) -> str:
    """Return the policy file of the models, whose maxima in a region are `engines`."""
    models = list(yaml.safe_load_all(documents))
    for model in models:
        if engines.get(model["name"]):
            model["scaling"] = {**model.get("scaling", {}), "max_endpoints": engines[model["name"]]}
    return yaml.safe_dump_all(models, sort_keys=False)


def roomy_spillover(document: str) -> str:
    """Return the policy file of spillover with the target utilisation of the day."""
    return yaml.safe_dump({**yaml.safe_load(document), "target_utilisation": TARGET_UTILISATION}, sort_keys=False)


def without_endpoint(entries: str, name: str) -> str:
    """Return an endpoints file without one entry."""
    return yaml.safe_dump([entry for entry in yaml.safe_load(entries) if entry["name"] != name], sort_keys=False)


def _answers(engine: str) -> float:
    """Return the number of answers that an engine has completed."""
    with urllib.request.urlopen(engine + "/metrics", timeout=ASK_TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:request_success_total{"))


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"

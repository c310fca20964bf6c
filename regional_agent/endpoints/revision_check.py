"""Compares what the endpoints of each pool report that they serve, adapters included, and refuses what policy does not
accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import UNSET

from penstock.health.revision_history import HOLD_S, RevisionHistory
from penstock.health.version_skew import Serving, Skew, SkewAgainst, skews
from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy
from regional_agent.endpoints.endpoint import Endpoint

_NONE: Final[Mapping[str, Skew]] = {}


class RevisionCheck:
    """The models of the policy, by which the endpoints' revisions are judged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Judge by no model; `clock` is monotonic (s)."""
        self._models: Mapping[str, Model] = {}
        self._history = RevisionHistory()
        self._clock = clock

    def use_policy(self, policy: Policy) -> None:
        """Judge by the models of `policy` from now on."""
        self._models = policy.models

    def judge(self, endpoints: Iterable[Endpoint]) -> None:
        """Record at every endpoint how it differs, and which of its models policy refuses there."""
        pools: dict[str, list[Endpoint]] = {}
        existing = list(endpoints)
        for endpoint in existing:
            reported = endpoint.reported
            served = {served.model for served in reported.facts.served}
            # What sleeps is judged before it wakes.
            listed = served & (reported.adapters | reported.wake_methods.keys())
            for name in listed.union(endpoint.loaded_models):
                pools.setdefault(name, []).append(endpoint)
        found: dict[str, dict[str, Skew]] = {}
        self._history.keep({endpoint.name for endpoint in existing})
        now = self._clock()
        for model, members in pools.items():
            differing = self._skews_of(model, members)
            for name, skew in (differing | self._held(model, members, differing, now)).items():
                found.setdefault(name, {})[model] = skew
        for endpoint in existing:
            skewed = found.get(endpoint.name, _NONE)
            refused = frozenset(model for model, skew in skewed.items() if self._is_refused(model, skew))
            endpoint.reported.set_skews(endpoint.name, skewed, refused)
            endpoint.update_detail()

    def is_due(self) -> bool:
        """Whether an endpoint has reported the expected revision for long enough, so that `judge` accepts it."""
        return self._history.is_due(self._clock())

    def _held(self, model: str, members: list[Endpoint], differing: Mapping[str, Skew], now: float) -> dict[str, Skew]:
        """Return the endpoints that are refused although they report the expected revision now."""
        policy = self._models.get(model)
        if policy is None or policy.expected_revision is UNSET or policy.refuse_skewed is not True:
            return {}
        expected, held = policy.expected_revision, {}
        for endpoint in members:
            skew = differing.get(endpoint.name)
            differs = skew is not None and skew.against is SkewAgainst.POLICY
            if self._history.is_held(endpoint.name, model, expected, now, differs=differs):
                detail = f"served another revision than {expected} within the last {HOLD_S:.0f} s"
                held[endpoint.name] = Skew(SkewAgainst.POLICY, detail)
        return held

    def _skews_of(self, model: str, members: list[Endpoint]) -> dict[str, Skew]:
        policy = self._models.get(model)
        expected = None if policy is None or policy.expected_revision is UNSET else policy.expected_revision
        pool = [
            Serving(
                endpoint.name,
                endpoint.kind.value,
                # Adapters have no engine of their own.
                "" if model in endpoint.reported.adapters else endpoint.reported.facts.version,
                next((served.revision for served in endpoint.reported.facts.served if served.model == model), ""),
            )
            for endpoint in members
        ]
        return skews(pool, expected)

    def _is_refused(self, model: str, skew: Skew) -> bool:
        return skew.against is SkewAgainst.POLICY and self._models[model].refuse_skewed is True

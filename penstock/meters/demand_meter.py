"""Measures the demand that clients offer to this agent, before routing, so that spillover does not hide demand."""

from __future__ import annotations

from typing import Final

from penstock.fleet.demand import ArrivalRate, DemandRows, settle_all
from penstock.fleet.report import MAX_COUNTRIES, MAX_COUNTRY, CountryReport, DemandReport
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.policy.residency import ResidencyClass

MAX_UNSETTLED_S: Final = 2.0
"""Time (s) after which rates are settled when they are read: twice the interval of reports."""


class DemandMeter:
    """Arrival rates by (model, residency class, priority), and by country."""

    def __init__(self, now: float) -> None:
        """Begin at `now`: monotonic (s), as all times."""
        self._began_at = self._settled_at = now
        self.rows = DemandRows()
        self._rates = self.rows.rates
        self._by_model: dict[str, tuple[float, float]] = {}
        self._countries: dict[str, ArrivalRate] = {}

    def offered(self, model: str, residency: ResidencyClass, country: str | None = None, *, priority: int = 0) -> None:
        """Count one request for `model` that the regions of `residency` may serve.

        Args:
            country: country of the client; None if unknown.
            priority: of the request.
        """
        origin = self._countries.get(country or "")
        if origin is None and len(self._countries) < MAX_COUNTRIES and len(country or "") <= MAX_COUNTRY:
            origin = self._countries[country or ""] = ArrivalRate(())
        if origin is not None:
            origin.arrived += 1
        rate = self._rates.get((model, residency.name, priority))
        if rate is None:
            rate = self.rows.of(model, residency, priority)
            if rate is None:
                return
        if priority == BATCH_PRIORITY:
            rate.batch_arrived += 1
        else:
            rate.arrived += 1

    def settle(self, now: float) -> None:
        """Update the rates to `now`, and drop negligible ones; called about once a second by reports."""
        elapsed_s = now - self._settled_at
        if elapsed_s <= 0.0:
            return
        self._settled_at = now
        self._by_model.clear()
        self.rows.settle(elapsed_s, now - self._began_at)
        settle_all(self._countries, elapsed_s, now - self._began_at)

    def per_s(self, model: str, now: float) -> float:
        """Return the arrival rate of a model in requests with a priority per second, over all residency classes."""
        return self._totals(model, now)[0]

    def batch_per_s(self, model: str, now: float) -> float:
        """Return the arrival rate of a model in batch requests per second, over all residency classes."""
        return self._totals(model, now)[1]

    def _totals(self, model: str, now: float) -> tuple[float, float]:
        """The rates of a model: probes need them several times a second for each region, and `settle` alone changes
        them."""
        if now - self._settled_at > MAX_UNSETTLED_S:
            # Reports settle the rates, and there are none without a control plane.
            self.settle(now)
        found = self._by_model.get(model)
        if found is None:
            rates = [rate for (name, _, _), rate in self._rates.items() if name == model]
            found = sum(rate.per_s for rate in rates), sum(rate.batch_per_s for rate in rates)
            self._by_model[model] = found
        return found

    def report(self) -> tuple[DemandReport, ...]:
        """Return the arrival rate of every model, residency class and priority."""
        return tuple(
            DemandReport(model, residency, rate.regions, rate.per_s, rate.batch_per_s, priority)
            for (model, residency, priority), rate in self._rates.items()
        )

    def report_countries(self) -> tuple[CountryReport, ...]:
        """Return the arrival rate of every country."""
        return tuple(CountryReport(country, rate.per_s) for country, rate in self._countries.items())

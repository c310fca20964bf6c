"""Finds the regions whose endpoints serve another revision of a model than those of most regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import UNSET

from penstock.fleet.endpoint_view import ReportedEndpoint
from penstock.health.version_skew import odd_ones
from penstock.policy.kinds.models import Model


def region_skews(found: Iterable[ReportedEndpoint], models: Mapping[str, Model]) -> dict[tuple[str, str], str]:
    """Return how regions differ, for operators, by region and model.

    The revision of a region is that of most of its endpoints. Agents compare models with `expected_revision` with it.
    """
    reported: dict[str, dict[str, Counter[str]]] = {}
    for endpoint in found:
        for served in endpoint.report.served:
            model = models.get(served.model)
            if served.revision and model is not None and model.expected_revision is UNSET:
                regions = reported.setdefault(served.model, {})
                regions.setdefault(endpoint.region, Counter())[served.revision] += 1
    skews = {}
    for name, regions in reported.items():
        usual = {region: max(sorted(counts), key=counts.__getitem__) for region, counts in regions.items()}
        for region, others in odd_ones(usual):
            skews[region, name] = f"the region serves {usual[region]}, and other regions {others}"
    return skews

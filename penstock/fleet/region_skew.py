"""Finds the regions whose endpoints serve another revision of a model than those of most regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import UNSET

from penstock.fleet.reported_endpoints import ReportedEndpoint
from penstock.health.engines.model_revision import same_spelling
from penstock.health.version_skew import odd_revisions
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
        spelled = same_spelling({text for counts in regions.values() for text in counts})
        usual = {region: _most_common(counts, spelled) for region, counts in regions.items()}
        for region, others in odd_revisions(usual):
            skews[region, name] = f"the region serves {usual[region]}, and other regions {others}"
    return skews


def _most_common(counts: Counter[str], spelled: Mapping[str, str]) -> str:
    """The revision of most endpoints of a region, by the spelling of each."""
    alike = Counter[str]()
    for text, count in counts.items():
        alike[spelled[text]] += count
    return max(sorted(alike), key=alike.__getitem__)

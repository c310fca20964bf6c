"""How alerts become notifications: one for each incident, and none for what another alert explains (Alertmanager).

Each alert has the label `place`: its region, or the site of what it is about. Alerts of one place are one incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from dashboards.rules import HEADER, Severity

PLACE: Final = "place"

NO_PLACE: Final = ()
"""Labels of an inhibition that holds for the whole fleet."""

GROUP_WAIT: Final = "30s"
"""Time for which an incident's further alerts are awaited: a lost region raises several within seconds."""

GROUP_INTERVAL: Final = "5m"
REPEAT: Final = {Severity.PAGE: "4h", Severity.TICKET: "24h"}
"""Time after which a notification of an incident that lasts is sent again."""


@dataclass(frozen=True)
class Inhibition:
    """Alerts that are not notified while another one fires."""

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...] = (PLACE,)
    """Labels that both must have with one value."""

    def as_yaml(self) -> dict[str, object]:
        """The rule as Alertmanager reads it."""
        return {
            "source_matchers": [f'alertname="{self.source}"'],
            "target_matchers": [f'alertname=~"{"|".join(self.targets)}"'],
            **({"equal": list(self.equal)} if self.equal else {}),
        }


INHIBITIONS: Final = (
    Inhibition(
        "PenstockRegionFailed",
        (
            "PenstockRegionDegraded",
            "PenstockAgentDown",
            "PenstockEndpointDown",
            "PenstockEndpointEjections",
            "PenstockEndpointSuspect",
            "PenstockEndpointSlow",
            "PenstockSaturated",
            "PenstockQueueSaturated",
            "PenstockCapacityBelowRecommended",
            "PenstockConfigOld",
            "PenstockSharedLoadDown",
            "PenstockReportsOld",
        ),
    ),
    Inhibition("PenstockAgentDown", ("PenstockConfigOld", "PenstockSharedLoadDown"), (PLACE, "agent")),
    Inhibition("PenstockEndpointDown", ("PenstockEndpointSuspect", "PenstockEndpointSlow"), (PLACE, "endpoint")),
    Inhibition("PenstockAvailabilityLow", ("PenstockAvailabilityEroding",)),
    Inhibition("PenstockObjectiveMissed", ("PenstockObjectiveMissedSlowly",), (PLACE, "model", "measure")),
    Inhibition("PenstockSaturated", ("PenstockCapacityBelowRecommended",), (PLACE, "model")),
    Inhibition(
        "PenstockNoLeader",
        ("PenstockPlanNotPublished", "PenstockReportsOld", "PenstockConfigOld", "PenstockLeaderFlapping"),
        NO_PLACE,
    ),
    Inhibition("PenstockCertificateExpiresNow", ("PenstockCertificateExpiresSoon",), ("instance", "certificate")),
)


def alertmanager_file(inhibitions: Sequence[Inhibition] = INHIBITIONS) -> str:
    """A configuration of Alertmanager whose receivers, named by severity, have no addresses yet."""
    routes = [
        {
            "receiver": severity.value,
            "matchers": [f'severity="{severity.value}"', 'alertname=~"Penstock.*"'],
            "repeat_interval": repeat,
        }
        for severity, repeat in REPEAT.items()
    ]
    document = {
        "route": {
            "receiver": Severity.TICKET.value,
            "group_by": [PLACE],
            "group_wait": GROUP_WAIT,
            "group_interval": GROUP_INTERVAL,
            "repeat_interval": REPEAT[Severity.TICKET],
            "routes": routes,
        },
        "inhibit_rules": [inhibition.as_yaml() for inhibition in inhibitions],
        "receivers": [{"name": severity.value} for severity in Severity],
    }
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=110)

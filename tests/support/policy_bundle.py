"""A small complete bundle that tests change and compile."""

from __future__ import annotations

import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle

DIGEST = "ab" * 32

BUNDLE = {
    "places.yaml": """\
apiVersion: penstock/v1
kind: Region
name: eu-de
city: Frankfurt
country: DE
latitude_deg: 50.11
longitude_deg: 8.68
cost_per_gpu_hour: 1.0
egress_cost_per_gb: 0.02
---
apiVersion: penstock/v1
kind: Region
name: us-east
city: Washington
country: US
latitude_deg: 38.9
longitude_deg: -77.04
cost_per_gpu_hour: 1.0
egress_cost_per_gb: 0.02
---
apiVersion: penstock/v1
kind: Bloc
name: EU
members: [DE, ES]
---
apiVersion: penstock/v1
kind: Bloc
name: EEA
members: [EU, NO]
""",
    "senders.yaml": f"""\
apiVersion: penstock/v1
kind: DataClass
name: personal
description: Personal data.
---
apiVersion: penstock/v1
kind: Tenant
name: one
data_class: personal
priority: 0
key_digests: ["{DIGEST}"]
quota: {{requests_per_s: 5.0, burst_requests: 10, concurrent: null}}
---
apiVersion: penstock/v1
kind: AnonymousAccess
tenant: null
""",
    "serving.yaml": """\
apiVersion: penstock/v1
kind: Model
name: llama-3.1-8b
expected_service_s: 5
request_bytes: 4000
response_bytes: 4000
cost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}
fallback: null
service_objective: null
---
apiVersion: penstock/v1
kind: GeoRouting
rtt_ms:
  eu-de: {us-east: 98}
---
apiVersion: penstock/v1
kind: Spillover
target_utilisation: 0.8
margin_s: 0.25
credit_ttl_s: 0.75
step_per_s: 0.25
---
apiVersion: penstock/v1
kind: Failover
probe_interval_s: 0.25
probe_timeout_s: 0.5
unhealthy_threshold: 2
healthy_threshold: 3
hold_down_s: 1.0
failback_ramp_s: 8.0
---
apiVersion: penstock/v1
kind: Objective
latency_ms_per_cost: 20000
queueing_weight: 1.0
change_penalty_ms: 5
survive_one_loss: false
forecast_horizon_s: 10
---
apiVersion: penstock/v1
kind: Rollout
shadow_s: 10
max_moved_share: 0.25
canary_regions: [eu-de]
canary_s: 60
acknowledge_timeout_s: 15
min_requests: 50
max_failure_increase: 0.02
max_latency_factor: 1.5
watch_s: 300
""",
    "operating.yaml": """\
apiVersion: penstock/v1
kind: GuardRails
max_withdrawn_share: 0.5
---
apiVersion: penstock/v1
kind: MaintenanceWindow
name: disks
regions: [us-east]
starts_at: 2026-12-01T02:00Z
time_zone: null
duration_s: 7200
recurrence: weekly
lead_s: 600
---
apiVersion: penstock/v1
kind: Drill
name: empty-one
exercise: evacuate_region
region: us-east
starts_at: 2026-12-01T09:00Z
recurrence: weekly
hold_s: 120
max_burn_rate: 3
""",
    "residency.yaml": """\
apiVersion: penstock/v1
kind: ResidencyRule
name: stay
description: Stays.
match:
  data_classes: [personal]
  countries: [EEA]
allow:
  jurisdictions: [EU]
""",
}


def changed(file: str, old: str, new: str) -> dict[str, str]:
    assert BUNDLE[file].count(old) == 1, f"{old!r} is not once in {file}"
    return BUNDLE | {file: BUNDLE[file].replace(old, new)}


def refused(files: dict[str, str]) -> list[str]:
    with pytest.raises(PolicyRefused) as caught:
        compile_bundle(files)
    return [str(error) for error in caught.value.errors]

"""The policy bundle with which a fleet starts: its regions, its models, and one tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from control_plane.policy.kinds import API_VERSION
from control_plane.quickstart.places import Place

DATA_CLASS = "open"
TENANT = "everybody"


def region_file(name: str, place: Place) -> str:
    """Return the file of a region."""
    fields = {"country": place.country, "latitude_deg": place.latitude_deg, "longitude_deg": place.longitude_deg}
    comment = "The place of the region: requests go to near regions first."
    return _documents(comment, {"kind": "Region", "name": name} | fields)


def models_file(models: Sequence[str]) -> str:
    """Return the documents of models."""
    return _documents(
        "Models that clients may request, by the names that engines serve. Costs and time limits have defaults.",
        *({"kind": "Model", "name": model} for model in models),
    )


def starter_bundle(regions: Mapping[str, Place], models: Sequence[str], key_digest: str) -> dict[str, str]:
    """Return the files of a bundle by name.

    Args:
        regions: the place of each region by name.
        models: names of the models that the engines serve.
        key_digest: SHA-256 of the tenant's API key, hexadecimal.
    """
    files = {f"region-{name}.yaml": region_file(name, place) for name, place in regions.items()}
    files["models.yaml"] = models_file(models)
    files["tenants.yaml"] = _documents(
        "Who sends requests. Residency rules (kind: ResidencyRule) decide by data class where they may be served.",
        {"kind": "DataClass", "name": DATA_CLASS},
        {"kind": "Tenant", "name": TENANT, "data_class": DATA_CLASS, "key_digests": [key_digest]},
    )
    if len(regions) == 1:
        files["accepted-losses.yaml"] = _documents(
            "Remove this file when there is a second region.",
            {
                "kind": "AcceptedLoss",
                "name": "only-region",
                "regions": list(regions),
                "because": "There is one region; requests are refused while it is lost.",
            },
        )
    return files


def _documents(comment: str, *documents: Mapping[str, Any]) -> str:
    texts = [yaml.safe_dump({"apiVersion": API_VERSION, **document}, sort_keys=False) for document in documents]
    return f"# {comment}\n" + "---\n".join(texts)

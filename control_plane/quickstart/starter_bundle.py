"""The policy bundle with which a fleet starts: its regions, its models, and its tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from control_plane.policy.kinds import API_VERSION
from control_plane.quickstart.places import Place
from penstock.health.engines.engine_kinds import DEFAULT_TAG
from penstock.policy.geography import BLOCS

DATA_CLASS = "open"
TENANT = "everybody"


def region_file(name: str, place: Place) -> str:
    """Return the file of a region."""
    fields = {"country": place.country, "latitude_deg": place.latitude_deg, "longitude_deg": place.longitude_deg}
    comment = "The place of the region: requests go to near regions first."
    return _documents(comment, {"kind": "Region", "name": name} | fields)


def models_file(models: Sequence[str], taken: Iterable[str] = ()) -> str:
    """Return the documents of models, and of the names without a tag that stand for models with the default tag.

    Args:
        taken: names of the policy, which keep their meaning.
    """
    names = {*models, *taken}
    untagged = {model.removesuffix(DEFAULT_TAG): model for model in models if model.endswith(DEFAULT_TAG)}
    return _documents(
        "Models that clients may request, by the names that engines serve. Time limits and costs have defaults.",
        *({"kind": "Model", "name": model} for model in models),
        *(
            {"kind": "ModelVersions", "name": name, "versions": [{"model": model, "percent": 100}]}
            for name, model in untagged.items()
            if name not in names
        ),
    )


def trial_rollout_file() -> str:
    """Return the file by which a fleet for trials applies each change of its policy within seconds."""
    comment = "For trials: a change waits 2 s, and the next one 5 s. Remove this file in production (10 s and 10 min)."
    return _documents(comment, {"kind": "Rollout", "shadow_s": 2, "watch_s": 5})


def starter_bundle(
    regions: Mapping[str, Place],
    models: Sequence[str],
    key_digests: Mapping[str | None, str],
    presets: Sequence[str] = (),
) -> dict[str, str]:
    """Return the files of a bundle by name.

    Args:
        regions: the place of each region by name.
        models: names of the models that the engines serve.
        key_digests: SHA-256 (hexadecimal) of each tenant's API key, by the country or bloc that its requests stay in;
            by None that of the tenant whose requests may be served anywhere.
        presets: APIs that the engines serve besides OpenAI's, which every fleet has.
    """
    files = {f"region-{name}.yaml": region_file(name, place) for name, place in regions.items()}
    files["models.yaml"] = models_file(models)
    files["tenants.yaml"] = _documents(
        "Who sends requests. Residency rules (kind: ResidencyRule) decide by data class where they may be served.",
        *(document for place, digest in key_digests.items() for document in _tenant(place, digest)),
    )
    if presets:
        included = {"kind": "RoutePresets", "presets": ["openai", *presets]}
        files["routes.yaml"] = _documents("The APIs of clients: those that the engines served at first.", included)
    kept = [place for place in key_digests if place is not None]
    if kept:
        files["residency.yaml"] = _documents("Where requests may be served, by data class.", *map(_rule, kept))
    losses = {"only-region": list(regions)} | {f"only-region-in-{p.lower()}": _regions_in(p, regions) for p in kept}
    accepted = [_accepted_loss(name, alone) for name, alone in losses.items() if len(alone) == 1]
    if accepted:
        files["accepted-losses.yaml"] = _documents("Remove each document when there is a second region.", *accepted)
    return files


def tenant_name(place: str | None) -> str:
    """Return the name of the tenant whose requests stay in a country or bloc, or may be served anywhere (None)."""
    return TENANT if place is None else place.lower()


def _tenant(place: str | None, key_digest: str) -> Sequence[Mapping[str, Any]]:
    name, data_class = tenant_name(place), DATA_CLASS if place is None else place.lower()
    return (
        {"kind": "DataClass", "name": data_class},
        {"kind": "Tenant", "name": name, "data_class": data_class, "key_digests": [key_digest]},
    )


def _rule(place: str) -> Mapping[str, Any]:
    return {
        "kind": "ResidencyRule",
        "name": f"{place.lower()}-stays",
        "match": {"data_classes": [place.lower()]},
        "allow": {"jurisdictions": [place]},
    }


def _regions_in(place: str, regions: Mapping[str, Place]) -> list[str]:
    return [name for name, region in regions.items() if region.country in BLOCS.get(place, {place})]


def _accepted_loss(name: str, regions: Sequence[str]) -> Mapping[str, Any]:
    return {
        "kind": "AcceptedLoss",
        "name": name,
        "regions": list(regions),
        "because": "There is one region; requests are refused while it is lost.",
    }


def _documents(comment: str, *documents: Mapping[str, Any]) -> str:
    texts = [yaml.safe_dump({"apiVersion": API_VERSION, **document}, sort_keys=False) for document in documents]
    return f"# {comment}\n" + "---\n".join(texts)

"""The models of an engine's list that a region leaves out, each with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.quickstart.places import FALLBACK
from control_plane.quickstart.starter_bundle import models_file, starter_bundle
from penstock.fleet.endpoint_report import MAX_MODELS

_SOMEWHERE = {"local": FALLBACK}
_NOBODY: Mapping[str | None, str] = {None: "0" * 64}
_OTHER_NAME = "an engine's --served-model-name or --alias gives a model another name"


def left_out(
    listed: Sequence[str], policy: Mapping[str, str] | None, fleet: Collection[str] | None = None
) -> dict[str, str]:
    """Return why some models of an engine cannot be served, by name.

    Args:
        listed: names of its models, each once.
        policy: the files of the region's bundle; empty for a new one, and None if the first region of the fleet has it.
        fleet: the models of that region's policy; None if they are not known.

    Raises:
        PolicyRefused: the policy itself is invalid.
    """
    reasons = {} if policy is None else _refused(listed, policy)
    if fleet is not None:
        reason = "the fleet's policy does not have it; add it at the first region and invite again"
        reasons |= {model: reason for model in listed if model not in fleet}
    served = [model for model in listed if model not in reasons]
    reason = f"an endpoint has at most {MAX_MODELS} models; choose them with --model"
    return reasons | dict.fromkeys(served[MAX_MODELS:], reason)


def _refused(listed: Sequence[str], policy: Mapping[str, str]) -> dict[str, str]:
    known = compile_bundle(policy) if policy else None
    taken = {*known.models, *known.versions} if known else set()
    # No file of a bundle has the name `/.yaml`; in a new one, the model is the only one.
    bundle, file = (policy, "/.yaml") if policy else (starter_bundle(_SOMEWHERE, (), _NOBODY), "models.yaml")
    reasons = {}
    for model in listed:
        try:
            if known is None or model not in known.models:
                compile_bundle({**bundle, file: models_file([model], taken)})
        except PolicyRefused as refused:
            problems = (
                f"its {each.field} {each.problem}; {each.remedy}" if each.file == file else str(each)
                for each in refused.errors
            )
            reasons[model] = "; ".join((*dict.fromkeys(problems), _OTHER_NAME))
    return reasons

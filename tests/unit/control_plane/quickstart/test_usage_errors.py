"""Errors of the policy that the quickstart makes or continues with."""

from __future__ import annotations

import pytest

from control_plane.cli.commands.quickstart_command import _usage_errors
from control_plane.cli.error_output import UsageFault
from control_plane.policy.bundle_errors import PolicyError, PolicyRefused


@pytest.mark.parametrize(
    ("file", "field", "is_of_name"),
    [
        ("models.yaml", "name", True),
        ("models-2.yaml", "name", True),
        ("models.yaml", "max_queue", False),
        ("models.yaml", "", False),
        ("tenants.yaml", "name", False),
    ],
)
def test_another_name_of_the_model_helps_against_errors_of_its_name_alone(
    file: str, field: str, is_of_name: bool
) -> None:
    with pytest.raises(UsageFault) as raised, _usage_errors():
        raise PolicyRefused([PolicyError(file, 3, field, "is not valid", "correct it")])
    assert ("--served-model-name" in str(raised.value)) is is_of_name

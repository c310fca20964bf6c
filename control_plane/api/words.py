"""What people write into requests for other people: one line, nothing that would act on the terminal that shows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.overrides import LONGEST_REASON

ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""No control characters."""

Reason = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_REASON, pattern=ONE_LINE, description="Why, for people and the audit log."),
]

"""Decoding and validation of JSON bodies, with bounded work and a bounded number of errors.

pydantic reports every unknown name of an object, and holds the interpreter's lock meanwhile, so the number of names of
an object is checked before. Lists are declared with `fail_fast` for the same reason.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from adapters.error_text import field_path

MAX_NAMES = 128
"""Maximum number of names of one JSON object, unless a body permits more."""

MAX_SHOWN_CHARS = 64
"""Maximum length (characters) of a name from a request in an error."""

SHOWN_ERRORS = 3
"""Number of errors in the `detail` of a problem."""

M = TypeVar("M", bound=BaseModel)


class BadBody(Exception):
    """The body is malformed.

    Args:
        status: HTTP status of the response.
        detail: the error, and the remedy.
        errors: the invalid fields, each with `field` and `problem`.
    """

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]]) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = errors


def decode_body(body: bytes, model: type[M], max_names: int = MAX_NAMES) -> M:
    """Return the validated body.

    Args:
        body: JSON; empty counts as a missing body.
        model: the model of the body.
        max_names: maximum number of names of one object.

    Raises:
        BadBody: 400, an object repeats a name; 422, the body is not JSON, an object has too many names, or the model
            does not permit the body.
    """
    if not body:
        raise _bad_body(422, "Field required")
    try:
        return model.model_validate(parse_json(body, max_names))
    except ValidationError as invalid:
        flaws = invalid.errors(include_url=False, include_context=False, include_input=False)
        errors = [field_error({**flaw, "loc": ("body", *flaw["loc"])}) for flaw in flaws]
        raise BadBody(422, error_detail(errors), errors) from None


def parse_json(body: bytes, max_names: int = MAX_NAMES) -> Any:
    """Return the value of a JSON document; raises BadBody, see `decode_body`."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > max_names:
            raise _bad_body(422, f"an object has {len(pairs)} names; at most {max_names} are permitted")
        found = dict(pairs)
        if len(found) < len(pairs):
            # Parsers disagree about which value of a repeated name counts.
            repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise _bad_body(400, f"{repeated[:MAX_SHOWN_CHARS]!r} is repeated in one object; give it once")
        return found

    try:
        return json.loads(body, object_pairs_hook=members)
    except json.JSONDecodeError as error:
        raise _bad_body(422, f"is not JSON: {error.msg} at character {error.pos}") from None
    except UnicodeDecodeError:
        raise _bad_body(422, "is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise _bad_body(422, "is nested too deeply") from None
    except ValueError:
        raise _bad_body(422, "is not JSON: a number has too many digits") from None


def field_error(flaw: Any) -> dict[str, str]:
    """Return one error of pydantic as `field` and `problem`."""
    shown = [part if isinstance(part, int) else part[:MAX_SHOWN_CHARS] for part in flaw["loc"]]
    return {"field": field_path(shown), "problem": flaw["msg"]}


def error_detail(errors: list[dict[str, str]]) -> str:
    """Return the `detail` of a problem with these errors."""
    shown = [f"{error['field']}: {error['problem']}" for error in errors[:SHOWN_ERRORS]]
    return "; ".join([*shown, f"and {len(errors) - SHOWN_ERRORS} more"] if len(errors) > SHOWN_ERRORS else shown)


def _bad_body(status: int, problem: str) -> BadBody:
    return BadBody(status, f"body: {problem}", [{"field": "body", "problem": problem}])

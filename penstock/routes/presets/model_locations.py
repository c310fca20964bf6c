"""Locations at which requests of presets name the model, and routes of an API that a fleet does not offer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.routes.route import BodyKind, ErrorFormat, Method, ModelLocation, ModelSource, Route

GET: Final[frozenset[Method]] = frozenset({"GET"})
EVERY_METHOD: Final[frozenset[Method]] = frozenset({"DELETE", "GET", "PATCH", "POST", "PUT"})

IN_BODY: Final = (ModelLocation(ModelSource.JSON, "/model"),)
IN_PATH: Final = (ModelLocation(ModelSource.PATH, "model"),)
BESIDE_BODY: Final = (ModelLocation(ModelSource.HEADER, "x-model"), ModelLocation(ModelSource.QUERY, "model"))


_TO_LABEL: Final = str.maketrans({"/": "-", "_": "-", ".": "-", "{": None, "}": None})
"""Translates a path into a part of a route's name, which must be a DNS label."""


def fixed_or_beside(model: str | None) -> tuple[ModelLocation, ...]:
    """Locations for an API whose requests name no model: the fixed model, or without it a header or the query."""
    return BESIDE_BODY if model is None else (ModelLocation(ModelSource.FIXED, model),)


def not_offered(api: str, paths: Iterable[str], errors: ErrorFormat) -> tuple[Route, ...]:
    """Routes that are refused with status 501.

    Args:
        api: name of the preset, which is the prefix of the names of the routes.
        paths: path templates.
        errors: format of the refusals.
    """
    return tuple(
        Route(
            f"{api}-not-offered{path.translate(_TO_LABEL)}",
            path,
            EVERY_METHOD,
            body=BodyKind.NONE,
            errors=errors,
            offered=False,
            preset=api,
        )
        for path in paths
    )

"""Models of request bodies, derived from structs of policy documents: the same fields, bounds, defaults and texts."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

import msgspec.inspect as types
from msgspec import Struct
from pydantic import Field, create_model

from control_plane.policy.document_fields import DocumentField, document_fields
from control_plane.policy.schema import attribute_docstrings
from control_plane.request_model import RequestModel

_BOUNDS: Final = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
"""pydantic's names of the limits of JSON Schema."""


class StructModel(RequestModel):
    """Base of derived models."""


@cache
def model_of(struct: type[Struct]) -> type[StructModel]:
    """Return the model of a struct whose fields are numbers, texts, enumerations, or null."""
    texts = dict(attribute_docstrings(struct))
    fields: dict[str, Any] = {
        name: (_type(field.type), _field(field, texts.get(name))) for name, field in document_fields(struct).items()
    }
    return create_model(f"{struct.__name__}Body", __base__=StructModel, __doc__=struct.__doc__, **fields)


def _field(field: DocumentField, text: str | None) -> Any:
    if field.is_required:
        return Field(description=text)
    return Field(None if field.may_be_null else field.default, description=text)


def _type(type_: types.Type) -> Any:
    match type_:
        case types.Metadata():
            limits = {_BOUNDS[name]: limit for name, limit in (type_.extra_json_schema or {}).items()}
            return Annotated[_type(type_.type), Field(**limits)]
        case types.UnionType():
            (inner,) = [each for each in type_.types if not isinstance(each, types.NoneType)]
            return _type(inner) | None
        case types.EnumType():
            return type_.cls
        case types.FloatType():
            return Annotated[float, Field(strict=True)]
        case types.IntType():
            return Annotated[int, Field(strict=True)]
        case _:
            raise TypeError(f"bodies cannot have a {type_}")

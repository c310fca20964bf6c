"""The format of segments in the usage store: Parquet, one row for each record."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.ledger.ledger_record import LedgerRecord

_TYPES: dict[Any, pa.DataType] = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}

SCHEMA = pa.schema(
    [
        pa.field(name, _TYPES[LedgerRecord.__annotations__[name]], nullable=False)
        for name in LedgerRecord.__struct_fields__
    ]
)
"""The fields of `LedgerRecord`."""


def encode_segment(records: Sequence[LedgerRecord]) -> bytes:
    """Return a Parquet file. Equal records give equal bytes with one version of pyarrow."""
    columns = [pa.array([getattr(record, field.name) for record in records], field.type) for field in SCHEMA]
    out = BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), out, compression="zstd")
    return out.getvalue()

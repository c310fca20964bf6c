"""The format of spool files, in which an agent keeps its records until they are in the usage store.

A file has a header of HEADER_BYTES and records. A record is its length (2 bytes, little-endian, at an even position)
and that many bytes of MessagePack; a length of 0 ends the file. The agent writes the file through a memory map, the
length after the content, so that after the death of the process a record is complete or absent.

After a loss of power, pages may be missing or old. The header therefore has the boot at which the file was written, and
two checkpoints: the end of the records at a time, and the CRC-32 of all records up to there. A file of an earlier boot
is read up to the last checkpoint that is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from penstock.ledger.ledger_record import UNKNOWN_OF_START, LedgerRecord, RecordKind

MAGIC: Final = b"PSLEDG1\n"
HEADER_BYTES: Final = 64
BOOT_BYTES: Final = 16
CHECKPOINT_PLACES: Final = (24, 40)
"""Positions of the two checkpoints, which are written in turn."""

LENGTH_BYTES: Final = 2
MAX_RECORD_BYTES: Final = 1 << 12
"""Maximum size of an encoded record. Names and identifiers in records are bounded far below."""

_ENDS: Final = frozenset({RecordKind.REQUEST, RecordKind.SERVED})
_CHECKPOINT: Final = Struct("<QI")
_CRC: Final = Struct("<I")


class JobResult(msgspec.Struct, frozen=True, array_like=True):
    """A result in a job store: a segment of the results of a batch, or the result of an asynchronous request."""

    region: str
    """Region that accepted the job."""
    tenant: str
    job: str
    claim: int
    """Number of the claim under which the requests ran."""
    segment: int
    """Number of the segment; 0 of an asynchronous request."""


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a file: the agent that writes it, and its place in the sequence of the agent's files."""

    region: str
    agent: str
    epoch: int
    """Number of the start of the agent, see `regional_agent.config.start_epoch`."""
    number: int
    """Number of the file since the start."""
    result: JobResult | None = None
    """The tenant pays for the requests of the file if the job store has this result; None: for those of any file."""


class SpoolFile(msgspec.Struct, frozen=True):
    """The content of a spool file."""

    opening: Opening
    records: list[LedgerRecord]


class BadSpoolFile(Exception):
    """The file is no spool file, or is damaged; the message states how."""


_opening_decoder: Final = msgspec.msgpack.Decoder(Opening)
_record_decoder: Final = msgspec.msgpack.Decoder(LedgerRecord)


def with_length(encoded: bytes) -> bytes:
    """Return a record with its length.

    Raises:
        ValueError: the record is longer than MAX_RECORD_BYTES.
    """
    if len(encoded) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(encoded)} bytes; at most {MAX_RECORD_BYTES} are possible")
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded + b"\0" * (len(encoded) & 1)


def header(boot: bytes) -> bytes:
    """Return the header of a new file; `boot` identifies the boot of the host."""
    return (MAGIC + boot[:BOOT_BYTES].ljust(BOOT_BYTES, b"\0")).ljust(HEADER_BYTES, b"\0")


def checkpoint(end: int, crc: int) -> bytes:
    """Return a checkpoint.

    Args:
        end: position of the end of the last record.
        crc: CRC-32 of all bytes between the header and `end`.
    """
    content = _CHECKPOINT.pack(end, crc)
    return content + _CRC.pack(crc32(content))


def whole_file(opening: Opening, records: Iterable[bytes], boot: bytes) -> bytes:
    """Return the content of a complete file.

    Args:
        records: encoded records.
        boot: identifies the boot of the host.
    """
    content = b"".join(map(with_length, (msgspec.msgpack.encode(opening), *records)))
    head, mark = header(boot), checkpoint(HEADER_BYTES + len(content), crc32(content))
    place = CHECKPOINT_PLACES[0]
    return head[:place] + mark + head[place + len(mark) :] + content


def read_spool(content: bytes, boot: bytes) -> SpoolFile:
    """Read a file. What follows the last complete record is ignored.

    Args:
        content: of the file.
        boot: identifies the boot of the host that reads; the records of another boot are read up to a checkpoint.

    Raises:
        BadSpoolFile: the file is not a spool file, or has no readable record.
    """
    if content[: len(MAGIC)] != MAGIC:
        raise BadSpoolFile("it does not begin as a spool file")
    end = len(content)
    if content[len(MAGIC) : len(MAGIC) + BOOT_BYTES] != boot[:BOOT_BYTES].ljust(BOOT_BYTES, b"\0"):
        end = _verified_end(content)
    at = HEADER_BYTES
    opening: Opening | None = None
    records: list[LedgerRecord] = []
    while at + LENGTH_BYTES <= end:
        size = int.from_bytes(content[at : at + LENGTH_BYTES], "little")
        begin = at + LENGTH_BYTES
        if size == 0 or begin + size > end:
            break
        encoded = content[begin : begin + size]
        try:
            if opening is None:
                opening = _opening_decoder.decode(encoded)
            else:
                records.append(_record_decoder.decode(encoded))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadSpoolFile(f"the record at byte {at} cannot be read: {error}") from None
        at = begin + size + (size & 1)
    if opening is None:
        raise BadSpoolFile("it has no record")
    return SpoolFile(opening, records)


def _verified_end(content: bytes) -> int:
    """Return the end of the records that the last right checkpoint covers; HEADER_BYTES if no checkpoint is right."""
    found = HEADER_BYTES
    if len(content) < HEADER_BYTES:
        return found
    for place in CHECKPOINT_PLACES:
        encoded = content[place : place + _CHECKPOINT.size]
        end, crc = _CHECKPOINT.unpack(encoded)
        if content[place : place + _CHECKPOINT.size + _CRC.size] != encoded + _CRC.pack(crc32(encoded)):
            continue
        if found < end <= len(content) and crc32(content[HEADER_BYTES:end]) == crc:
            found = end
    return found


def records_of(file: SpoolFile, *, is_last: bool, held: Iterable[LedgerRecord] = ()) -> list[LedgerRecord]:
    """Return the records of a file without starts.

    Args:
        held: records of ends that are in files of their own.
        is_last: whether the agent died while this was its newest file. Each new file begins with the starts of all open
            requests, so a start without an end in this file is a request that ran when the agent died; it becomes a
            record of the kind UNKNOWN_END or UNKNOWN_SERVED.
    """
    found = [record for record in file.records if record.kind != RecordKind.START]
    if not is_last:
        return found
    # Clients choose identifiers of requests, so several open requests may have the same. In the order of the file: a
    # request that no target received has an end and no start, and jobs send it again with the same identifier.
    started: dict[str, deque[LedgerRecord]] = {}
    for record in file.records:
        if record.kind == RecordKind.START:
            started.setdefault(record.request_id, deque()).append(record)
        elif record.kind in _ENDS and started.get(record.request_id):
            started[record.request_id].popleft()
    for record in held:
        if started.get(record.request_id):
            started[record.request_id].popleft()
    for record in chain.from_iterable(started.values()):
        is_origin = record.origin == file.opening.region
        found.append(replace(record, kind=int(UNKNOWN_OF_START[is_origin])))
    return found

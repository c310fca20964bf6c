"""Paths of the job store. Everything of a tenant is below its folder.

    tenants/<tenant>/files/<file>.json               record of a file
    tenants/<tenant>/file-data/<file>/<part>         its parts
    tenants/<tenant>/uploads/<upload>/...            record, parts and end of an upload in parts
    tenants/<tenant>/batches/<batch>.json            record of a batch
    tenants/<tenant>/batch-data/<batch>/...          claims, segments of results, end
    tenants/<tenant>/jobs/<job>.json                 record of an asynchronous request
    tenants/<tenant>/job-data/<job>/...              its body until its end, claims, result, end
    tenants/<tenant>/job-bytes/<job>/<bytes>         size of its body, until its end
    open/<region>/<tenant>/<batch or job>.<deadline> marks what has not ended
    cancelled/<tenant>/<batch or job>                marks what was cancelled and has not ended
    webhooks/<region>/<tenant>/<event>/<n>           a webhook before its attempt n + 1
    expiring/<hour>/<tenant>/<file, batch or job>    marks what is deleted by age, by the hour of its upload or end
    uploading/<hour>/<tenant>/<upload>               marks uploads in parts, by the hour from which they are deleted
    results/<region>/<document>/<expiry>/<key>-<tag> a large response of the result cache, by the time of its expiry
    alive/<region>                                   changes while an agent of the region uses the store
    pace/<region>/<agent>                            what an agent runs of asynchronous requests, and how fast
    clock/<random>                                   shows the time of the store, while an agent reads it

Identifiers begin with the time of creation, so that lists are in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

RANDOM_BYTES: Final = 10
"""Number of random bytes of an identifier."""

_TIME_CHARS: Final = 12
_ID: Final = re.compile(r"(file-|batch_|msgbatch_|job_)[0-9a-f]{32}")
_UPLOAD_ID: Final = re.compile(r"upload_[0-9a-f]{32}")
_PART_ID: Final = re.compile(r"part_[0-9a-f]{32}")

# Objects of others in the store, such as what a file server or the console of a cloud leaves, are ignored.
_OF_HOUR: Final = re.compile(r"[^/]+/([0-9]{1,12})/([^/]+)/([^/]+)")
_OPEN: Final = re.compile(r"[^/]+/[^/]+/([^/]+)/([^/.]+)(?:\.([0-9]{1,15}))?")
_RESULT: Final = re.compile(r"results/[^/]+/[^/]+/([0-9]{1,15})/[^/]+")
_WEBHOOK: Final = re.compile(r"[^/]+/[^/]+/([^/]+)/([^/]+)/([0-9]{1,6})")
_BODY_SIZE: Final = re.compile(r"tenants/[^/]+/job-bytes/[^/]+/([0-9]{1,15})")
_SEGMENT: Final = re.compile(r"(?:.*/)?([0-9]{1,9})-([0-9]{1,9})\.json")

FILE: Final = "file-"
BATCH: Final = "batch_"
MESSAGE_BATCH: Final = "msgbatch_"
"""A batch of Anthropic's API; BATCH is one of OpenAI's."""
JOB: Final = "job_"
UPLOAD: Final = "upload_"
PART: Final = "part_"


def new_id(prefix: str, unix_s: float, random: bytes) -> str:
    """An identifier that begins with `prefix`; `random` has RANDOM_BYTES bytes."""
    return f"{prefix}{int(unix_s * 1000):0{_TIME_CHARS}x}{random.hex()}"


def repeatable_id(prefix: str, *parts: bytes) -> str:
    """An identifier that is equal for equal parts: those of a request with an Idempotency-Key."""
    return f"{prefix}{sha256(b''.join(sha256(part).digest() for part in parts)).hexdigest()[:32]}"


def created_at(identifier: str) -> float:
    """The Unix time (s) in an identifier, which `is_id` accepts. One that was made of a digest has any time."""
    return int(identifier[-2 * RANDOM_BYTES - _TIME_CHARS : -2 * RANDOM_BYTES], 16) / 1000


def is_id(prefix: str, text: str) -> bool:
    """Whether a text is an identifier with this prefix."""
    return text.startswith(prefix) and _ID.fullmatch(text) is not None


def is_batch(identifier: str) -> bool:
    """Whether the identifier of a job is that of a batch."""
    return identifier.startswith((BATCH, MESSAGE_BATCH))


def is_job(text: str) -> bool:
    """Whether a text is the identifier of a batch or of an asynchronous request."""
    return not text.startswith(FILE) and _ID.fullmatch(text) is not None


def is_file_or_job(text: str) -> bool:
    """Whether a text is the identifier of a file, a batch or an asynchronous request."""
    return _ID.fullmatch(text) is not None


def files(tenant: str) -> str:
    """Folder of the records of a tenant's files."""
    return f"tenants/{tenant}/files"


def file_record(tenant: str, file: str) -> str:
    """Path of the record of a file."""
    return f"{files(tenant)}/{file}.json"


def all_file_data(tenant: str) -> str:
    """Folder of the parts of all files of a tenant."""
    return f"tenants/{tenant}/file-data"


def file_part(tenant: str, file: str, number: int) -> str:
    """Path of a part of an uploaded file."""
    return f"{all_file_data(tenant)}/{file}/{number:06d}"


def batches(tenant: str) -> str:
    """Folder of the records of a tenant's batches."""
    return f"tenants/{tenant}/batches"


def jobs(tenant: str) -> str:
    """Folder of the records of a tenant's asynchronous requests."""
    return f"tenants/{tenant}/jobs"


def body_sizes(tenant: str) -> str:
    """Folder of the sizes of the bodies that a tenant's asynchronous requests have until their ends."""
    return f"tenants/{tenant}/job-bytes"


def body_bytes(path: str) -> int:
    """The size (bytes) in a path of `body_sizes`; 0 for another object."""
    found = _BODY_SIZE.fullmatch(path)
    return 0 if found is None else int(found[1])


def open_batches(region: str) -> str:
    """Folder of the marks of what has not ended in a region."""
    return f"open/{region}"


def webhooks(region: str) -> str:
    """Folder of the webhooks that no receiver has accepted yet."""
    return f"webhooks/{region}"


def alive(region: str) -> str:
    """Path of the object that the agents of a region change."""
    return f"alive/{region}"


def paces(region: str) -> str:
    """Folder of the paces of a region's agents."""
    return f"pace/{region}"


def pace(region: str, agent: str) -> str:
    """Path of the pace of an agent."""
    return f"{paces(region)}/{agent}"


def results(region: str) -> str:
    """Folder of the large responses that a region's agents keep."""
    return f"results/{region}"


def results_of(region: str, document: str) -> str:
    """Folder of the large responses that are kept by a document of the policy; first those that expire first."""
    return f"{results(region)}/{document}"


def result(region: str, document: str, expires_at: float, name: str) -> str:
    """Path of a large response that is kept until a Unix time (s)."""
    return f"{results_of(region, document)}/{int(expires_at):012d}/{name}"


def result_expires_at(path: str) -> int | None:
    """The Unix time (s) in the path of a kept response; None for another object."""
    found = _RESULT.fullmatch(path)
    return None if found is None else int(found[1])


def record_of(tenant: str, identifier: str) -> str:
    """Path of the record of a file or a job."""
    if identifier.startswith(FILE):
        return file_record(tenant, identifier)
    return JobPaths(tenant, identifier).record


EXPIRING: Final = "expiring"
"""Folder of the marks of what is deleted by age. Their order is that of the hours."""

_HOUR_S: Final = 3600


class Expiring(NamedTuple):
    """A file, batch or asynchronous request that is deleted by age."""

    tenant: str
    id: str
    mark: str
    """Path of its mark."""


def expiring(tenant: str, identifier: str, unix_s: float) -> Expiring:
    """What is deleted by its age since `unix_s`: the time of its upload or end."""
    return Expiring(tenant, identifier, f"{EXPIRING}/{int(unix_s) // _HOUR_S:08d}/{tenant}/{identifier}")


def expired(marks: Iterable[str], retention_s: float, now: float) -> Iterator[Expiring]:
    """Those of the marks whose whole hour is longer ago than `retention_s`; `now` is Unix time (s)."""
    for mark in marks:
        found = _OF_HOUR.fullmatch(mark)
        if found and _ID.fullmatch(found[3]) and (int(found[1]) + 1) * _HOUR_S + retention_s <= now:
            yield Expiring(found[2], found[3], mark)


CANCELLED: Final = "cancelled"
"""Folder of what was cancelled and has not ended, which agents find without a look at each job."""

CLOCK: Final = "clock"
"""Folder of the objects by whose times agents compare their clocks with that of the store."""

UPLOADING: Final = "uploading"
"""Folder of the marks of uploads in parts. Their order is that of the hours."""

_IN_FLIGHT_HOURS: Final = 2
"""Hours from the one in which an upload expires to its deletion: what was sent to a signed URL may still be written."""


def is_upload(text: str) -> bool:
    """Whether a text is the identifier of an upload in parts."""
    return _UPLOAD_ID.fullmatch(text) is not None


def is_part(text: str) -> bool:
    """Whether a text is the identifier of a part of an upload."""
    return _PART_ID.fullmatch(text) is not None


def uploads(tenant: str) -> str:
    """Folder of the uploads in parts of a tenant."""
    return f"tenants/{tenant}/uploads"


class UploadPaths(NamedTuple):
    """Paths of one upload in parts."""

    tenant: str
    id: str

    @property
    def folder(self) -> str:
        """Folder of everything of the upload."""
        return f"{uploads(self.tenant)}/{self.id}"

    @property
    def record(self) -> str:
        """Path of the record."""
        return f"{self.folder}/upload.json"

    @property
    def end(self) -> str:
        """Path of the record of the end."""
        return f"{self.folder}/end.json"

    @property
    def problem(self) -> str:
        """Path of the problem of the last completion, which the next request returns."""
        return f"{self.folder}/problem.json"

    @property
    def parts(self) -> str:
        """Folder of the parts."""
        return f"{self.folder}/parts"

    def part(self, part: str, number: int) -> str:
        """Path of an object of a part, whose objects are in the order of their numbers."""
        return f"{self.parts}/{part}/{number:06d}"

    def mark(self, expires_at: float) -> str:
        """Path of the mark of an upload that expires at a Unix time (s)."""
        return f"{UPLOADING}/{int(expires_at) // _HOUR_S + _IN_FLIGHT_HOURS:08d}/{self.tenant}/{self.id}"


def expired_uploads(marks: Iterable[str], now: float) -> Iterator[tuple[UploadPaths, str]]:
    """The uploads, and their marks, that are deleted from `now` (Unix time, s)."""
    for mark in marks:
        found = _OF_HOUR.fullmatch(mark)
        if found and is_upload(found[3]) and int(found[1]) * _HOUR_S <= now:
            yield UploadPaths(found[2], found[3]), mark


class EventPaths(NamedTuple):
    """Paths of the webhook of one event."""

    tenant: str
    event: str
    """The job, and the time of its end. In stores of earlier versions the job alone."""

    @property
    def job(self) -> str:
        """Identifier of the job."""
        return self.event.partition(".")[0]

    def webhooks(self, region: str) -> str:
        """Folder of the webhook."""
        return f"{webhooks(region)}/{self.tenant}/{self.event}"

    def webhook(self, region: str, attempts: int) -> str:
        """Path of the webhook after a number of attempts."""
        return f"{self.webhooks(region)}/{attempts:02d}"


def webhook_attempts(path: str) -> tuple[EventPaths, int] | None:
    """The event of the path of a webhook, and the number of its attempts; None for another object."""
    found = _WEBHOOK.fullmatch(path)
    return None if found is None else (EventPaths(found[1], found[2]), int(found[3]))


def segment_numbers(path: str) -> tuple[int, int] | None:
    """The claim of the path of a segment's record, and the number of the segment; None for another object."""
    found = _SEGMENT.fullmatch(path)
    return None if found is None else (int(found[1]), int(found[2]))


class JobPaths(NamedTuple):
    """Paths of one batch, or of one asynchronous request."""

    tenant: str
    id: str

    @property
    def record(self) -> str:
        """Path of the record."""
        folder = batches(self.tenant) if is_batch(self.id) else jobs(self.tenant)
        return f"{folder}/{self.id}.json"

    @property
    def data(self) -> str:
        """Folder of all other objects."""
        kind = "batch" if is_batch(self.id) else "job"
        return f"tenants/{self.tenant}/{kind}-data/{self.id}"

    @property
    def body(self) -> str:
        """Path of the body of an asynchronous request."""
        return f"{self.data}/body"

    @property
    def body_size(self) -> str:
        """Folder of the size of the body."""
        return f"{body_sizes(self.tenant)}/{self.id}"

    def result(self, claim: int) -> str:
        """Path of the body of the response to an asynchronous request that ran under a claim."""
        return f"{self.data}/result-{claim:06d}"

    @property
    def claims(self) -> str:
        """Folder of the claims."""
        return f"{self.data}/claims"

    def claim(self, number: int) -> str:
        """Path of a claim."""
        return f"{self.claims}/{number:06d}.json"

    @property
    def segments(self) -> str:
        """Folder of the segments of results."""
        return f"{self.data}/segments"

    def segment(self, claim: int, number: int, suffix: str) -> str:
        """Path of an object of a segment: its `json`, and the parts `output` and `errors` that it names."""
        return f"{self.segments}/{claim:06d}-{number:08d}.{suffix}"

    @property
    def cancellation(self) -> str:
        """Path of an object that exists from a request for cancellation to the end."""
        return f"{CANCELLED}/{self.tenant}/{self.id}"

    @property
    def end(self) -> str:
        """Path of the record of the end."""
        return f"{self.data}/end.json"

    def event(self, at: float) -> EventPaths:
        """Paths of the webhook of the end at `at` (Unix time, s). Another job may have its identifier
        after its deletion by age."""
        return EventPaths(self.tenant, f"{self.id}.{int(at * 1000)}")

    def mark(self, region: str, expires_at: int) -> str:
        """Path of the mark of a job that has not ended and expires at a Unix time (s)."""
        return f"{open_batches(region)}/{self.tenant}/{self.id}.{expires_at}"


class OpenJob(NamedTuple):
    """A batch or asynchronous request that has not ended."""

    paths: JobPaths
    deadline_at: float
    """Unix time (s)."""
    mark: str
    """Path of its mark."""
    is_given_up: bool = False
    """Whether its last agent has given it up, so that any agent may run it at once."""


GIVEN_UP: Final = b"given up"
"""Content of the mark of a job that its agent has given up; that of any other job is empty."""


def open_job(mark: str, size_bytes: int = 0) -> OpenJob | None:
    """Return the job of a mark; None for another object. A mark of an earlier release has no deadline: 0."""
    found = _OPEN.fullmatch(mark)
    if found is None or not is_job(found[2]):
        return None
    return OpenJob(JobPaths(found[1], found[2]), float(found[3] or 0), mark, size_bytes > 0)

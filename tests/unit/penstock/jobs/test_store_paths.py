"""Paths of the job store: identifiers, and what is deleted by its age."""

from __future__ import annotations

import pytest

from penstock.jobs.store_paths import (
    BATCH,
    FILE,
    JOB,
    MESSAGE_BATCH,
    JobPaths,
    OpenJob,
    UploadPaths,
    all_file_data,
    body_bytes,
    body_sizes,
    created_at,
    expired,
    expired_uploads,
    expiring,
    file_part,
    file_record,
    is_batch,
    is_id,
    is_job,
    is_part,
    new_id,
    open_job,
    record_of,
    repeatable_id,
    result,
    result_expires_at,
    segment_numbers,
    webhook_attempts,
    webhooks,
)

RANDOM_BYTES = 10
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = 1_795_780_800.5
RANDOM = bytes(range(RANDOM_BYTES))


@pytest.mark.parametrize(
    ("prefix", "of_batch", "of_job"),
    [(FILE, False, False), (BATCH, True, True), (MESSAGE_BATCH, True, True), (JOB, False, True)],
)
def test_identifiers_are_in_the_order_of_their_creation(prefix: str, of_batch: bool, of_job: bool) -> None:
    identifier = new_id(prefix, NOW, RANDOM)
    assert identifier == f"{prefix}01a21ce06ff400010203040506070809"
    assert created_at(identifier) == NOW
    assert new_id(prefix, NOW + 0.001, bytes(RANDOM_BYTES)) > identifier
    assert (is_id(prefix, identifier), is_batch(identifier), is_job(identifier)) == (True, of_batch, of_job)
    others = {FILE, BATCH, MESSAGE_BATCH, JOB} - {prefix}
    assert not any(is_id(other, identifier) for other in others)


@pytest.mark.parametrize("text", ["", "batch_", f"batch_{'0' * 31}", f"batch_{'g' * 32}", f"batch_{'0' * 32}/x"])
def test_other_texts_are_no_identifiers(text: str) -> None:
    assert not is_id(BATCH, text)
    assert not is_job(text)


def test_everything_of_a_tenant_is_below_its_folder() -> None:
    batch, job = JobPaths("acme", f"batch_{'0' * 32}"), JobPaths("acme", f"job_{'0' * 32}")
    assert batch.record == f"tenants/acme/batches/{batch.id}.json"
    assert job.record == f"tenants/acme/jobs/{job.id}.json"
    assert batch.claim(3) == f"tenants/acme/batch-data/{batch.id}/claims/000003.json"
    assert batch.segment(3, 4, "json") == f"tenants/acme/batch-data/{batch.id}/segments/000003-00000004.json"
    assert batch.cancellation == f"cancelled/acme/{batch.id}"
    assert batch.end == f"tenants/acme/batch-data/{batch.id}/end.json"
    assert job.body == f"tenants/acme/job-data/{job.id}/body"
    assert job.result(3) == f"tenants/acme/job-data/{job.id}/result-000003"
    assert job.body_size == f"{body_sizes('acme')}/{job.id}" == f"tenants/acme/job-bytes/{job.id}"
    assert (body_bytes(f"{job.body_size}/1234"), body_bytes(f"{job.body_size}/x")) == (1234, 0)
    assert file_record("acme", "f") == "tenants/acme/files/f.json"
    assert file_part("acme", "f", 7) == f"{all_file_data('acme')}/f/000007" == "tenants/acme/file-data/f/000007"
    # Marks and webhooks of a region are listed without its tenants.
    mark = f"open/eu/acme/{batch.id}.1700"
    assert batch.mark("eu", 1700) == mark
    assert open_job(mark) == OpenJob(batch, 1700.0, mark)
    assert open_job(mark.removesuffix(".1700")) == OpenJob(batch, 0.0, mark.removesuffix(".1700"))
    assert open_job("open/eu/acme/notes") is open_job("open/eu/acme") is None
    event = batch.event(7.5)
    assert event.webhook("eu", 2) == f"{webhooks('eu')}/acme/{event.event}/02" == f"webhooks/eu/acme/{batch.id}.7500/02"


def test_a_job_is_deleted_once_its_whole_hour_is_older_than_the_retention() -> None:
    identifier = f"job_{'0' * 32}"
    found = expiring("acme", identifier, 7200.0 + 3599.0)
    assert (found.tenant, found.id) == ("acme", identifier)
    assert found.mark == f"expiring/00000002/acme/{identifier}"
    marks = [found.mark, "expiring/00000000/acme/notes"]
    assert list(expired(marks, 1000.0, 3 * 3600.0 + 999.0)) == []
    assert list(expired(marks, 1000.0, 3 * 3600.0 + 1000.0)) == [found]


def test_an_equal_request_has_an_equal_identifier() -> None:
    found = repeatable_id(JOB, b"acme", b"key", b"body")
    assert is_id(JOB, found)
    assert found == repeatable_id(JOB, b"acme", b"key", b"body")
    others = [(b"acme", b"key", b"bod"), (b"acme", b"keyb", b"ody"), (b"acm", b"ekey", b"body"), (b"acme", b"key")]
    assert len({found, *(repeatable_id(JOB, *parts) for parts in others)}) == 5


def test_the_record_of_an_identifier_is_that_of_its_kind() -> None:
    file, batch = f"file-{'0' * 32}", f"batch_{'0' * 32}"
    assert record_of("acme", file) == f"tenants/acme/files/{file}.json"
    assert record_of("acme", batch) == f"tenants/acme/batches/{batch}.json"


def test_a_kept_response_states_its_expiry_in_its_path() -> None:
    path = result("eu", "chats", NOW, "key-tag")
    assert path == "results/eu/chats/001795780800/key-tag"
    assert result_expires_at(path) == 1_795_780_800


def test_objects_of_others_are_ignored() -> None:
    job, upload = f"job_{'0' * 32}", f"upload_{'0' * 32}"
    assert open_job(f"open/eu/acme/{job}.bak") is open_job(f"open/eu/acme/{job}.17/x") is open_job("open/eu") is None
    others = ["expiring", "expiring/notes", f"expiring/later/acme/{job}", f"expiring/00000000/{job}"]
    assert list(expired(others, 0.0, NOW)) == []
    others = ["uploading/notes", f"uploading/later/acme/{upload}", f"uploading/00000000/{upload}"]
    assert list(expired_uploads(others, NOW)) == []
    assert result_expires_at("results/eu/chats/later/x") is result_expires_at("results/eu/notes") is None
    event = JobPaths("acme", job).event(7.5)
    assert webhook_attempts(event.webhook("eu", 2)) == (event, 2)
    for path in ("webhooks/eu/notes", f"webhooks/eu/acme/{event.event}/.nfs01", f"{event.webhook('eu', 2)}/x"):
        assert webhook_attempts(path) is None
    batch = JobPaths("acme", f"batch_{'0' * 32}")
    assert segment_numbers(batch.segment(3, 4, "json")) == (3, 4)
    assert segment_numbers(batch.segment(3, 4, "output")) is segment_numbers("x/notes.json") is None


def test_parts_of_uploads_are_no_jobs() -> None:
    part = f"part_{'0' * 32}"
    assert is_part(part)
    assert not is_job(part)
    assert not any(is_part(text) for text in ("", "part_", f"part_{'0' * 31}", f"upload_{'0' * 32}", f"{part}/x"))


def test_uploads_are_deleted_two_hours_after_the_hour_of_their_expiry() -> None:
    hour = 3600.0
    early, late = UploadPaths("acme", f"upload_{'0' * 32}"), UploadPaths("beta", f"upload_{'1' * 32}")
    marks = [early.mark(10 * hour + 1.0), late.mark(11 * hour), f"uploading/{1:08d}/acme/batch_{'0' * 32}"]
    assert marks[0] == f"uploading/00000012/acme/{early.id}"
    assert list(expired_uploads(marks, 12 * hour - 1.0)) == []
    assert list(expired_uploads(marks, 12 * hour)) == [(early, marks[0])]
    assert list(expired_uploads(marks, 13 * hour)) == [(early, marks[0]), (late, marks[1])]

"""The form of an upload, as different clients write it."""

from __future__ import annotations

import pytest

from regional_agent.jobs.uploads.upload_form import UploadForm


@pytest.mark.parametrize(
    ("written", "filename"),
    [
        (b'"plain.jsonl"', "plain.jsonl"),
        (rb'"a\"b"', 'a"b'),
        (rb'"a\\"', "a\\"),
        (rb'"C:\data\in.jsonl"', r"C:\data\in.jsonl"),
        (b'"a;b name=c"', "a;b name=c"),
        ('"größe.jsonl"'.encode(), "größe.jsonl"),
        (b'""', ""),
        (b'"' + b"x" * 300 + b'"', "x" * 255),
    ],
)
def test_the_name_of_the_file_is_that_of_the_client(written: bytes, filename: str) -> None:
    received = bytearray()
    form = UploadForm(b"multipart/form-data; boundary=B", b"file", received.extend)
    form.feed(b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n')
    form.feed(b'--B\r\nContent-Disposition: form-data; name="file"; filename=' + written + b"\r\n\r\n{}\r\n--B--\r\n")
    form.finish()
    assert (form.filename, form.fields, bytes(received)) == (filename, {"purpose": "batch"}, b"{}")

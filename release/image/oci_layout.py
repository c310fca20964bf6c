"""An OCI image layout (image-spec 1.1) in one archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from release.archive import Entry, compressed, write_tar

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class Layer(NamedTuple):
    """A layer: compressed content, the digest of the uncompressed content, and what it is."""

    content: bytes
    diff_id: str
    created_by: str


def layer(entries: Sequence[Entry], created_by: str) -> Layer:
    """Return the layer of some files. Its times are 0, so that it is the same in every release with the same files."""
    plain = io.BytesIO()
    write_tar(plain, entries)
    return Layer(compressed(plain.getvalue()), digest(plain.getvalue()), created_by)


def digest(content: bytes) -> str:
    """Return the digest of content as OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write_layout(
    target: Path, layers: Sequence[Layer], config: Mapping[str, Any], annotations: Mapping[str, str], reference: str
) -> str:
    """Write the archive of an image and return the digest of its manifest.

    Args:
        config: the image configuration without `rootfs` and `history`.
        annotations: annotations of the manifest.
        reference: name and tag by which engines load the image.
    """
    blobs: dict[str, bytes] = {each_digest: each.content for each in layers for each_digest in (digest(each.content),)}
    configuration = _json(
        {
            **config,
            "rootfs": {"type": "layers", "diff_ids": [each.diff_id for each in layers]},
            "history": [{"created": config["created"], "created_by": each.created_by} for each in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, configuration),
            "layers": [_descriptor(LAYER_TYPE, each.content) for each in layers],
            "annotations": dict(annotations),
        }
    )
    platform = {"architecture": config["architecture"], "os": config["os"]}
    named = {
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        "io.containerd.image.name": reference,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [{**_descriptor(MANIFEST_TYPE, manifest), "platform": platform, "annotations": named}],
    }
    for blob in (configuration, manifest):
        blobs[digest(blob)] = blob
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/{name.replace(':', '/')}": blob for name, blob in blobs.items()}
    with target.open("wb") as output, tarfile.open(fileobj=output, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return digest(manifest)


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

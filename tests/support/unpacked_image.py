"""An OCI archive unpacked as container engines do, and commands that run in it: read-only, without privileges."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class UnpackedImage:
    """An image of an archive.

    Args:
        archive: an OCI layout in a tar archive, with one image.
        root: new directory, into which the layers are unpacked; None verifies the archive only.
    """

    def __init__(self, archive: Path, root: Path | None = None) -> None:
        with tarfile.open(archive) as layout:
            files = {member.name: layout.extractfile(member) for member in layout.getmembers() if member.isfile()}
            blobs = {name: content.read() for name, content in files.items() if content is not None}
        assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        self._blobs = {name.removeprefix("blobs/sha256/"): content for name, content in blobs.items()}
        (self.descriptor,) = json.loads(blobs["index.json"])["manifests"]
        self.manifest: Mapping[str, Any] = json.loads(self._blob(self.descriptor))
        self.configuration: Mapping[str, Any] = json.loads(self._blob(self.manifest["config"]))
        self.config: Mapping[str, Any] = self.configuration["config"]
        self.layers = [gzip.decompress(self._blob(each)) for each in self.manifest["layers"]]
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.layers]
        assert digests == self.configuration["rootfs"]["diff_ids"]
        if root is not None:
            root.mkdir()
            root.chmod(0o755)
            for layer in self.layers:
                with tarfile.open(fileobj=io.BytesIO(layer)) as content:
                    content.extractall(root, filter="fully_trusted", numeric_owner=True)
        self.root = root

    def _blob(self, descriptor: Mapping[str, Any]) -> bytes:
        content = self._blobs[descriptor["digest"].removeprefix("sha256:")]
        assert len(content) == descriptor["size"]
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        return content

    def members(self) -> list[tarfile.TarInfo]:
        """The entries of all layers."""
        found = []
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as content:
                found += content.getmembers()
        return found

    def command(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """A command of this machine that runs `argv` in the image, with its variables, as its user.

        The root file system is read-only; /tmp and the directory of the agent's state are in memory. Needs root.

        Args:
            mounts: directories of this machine by the path in the image.
        """
        root = str(self.root)
        user, group = self.config["User"].split(":")
        state = f"{root}/var/lib/penstock-agent"
        lines = [
            f"mount --bind {root} {root}",
            *(
                f"mkdir -p {root}{path} && mount --bind {source} {root}{path}"
                for path, source in (mounts or {}).items()
            ),
            f"mount -o remount,ro,bind {root}",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
            f"mount -t tmpfs -o mode=700,uid={user},gid={group} tmpfs {state}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
        ]
        variables = dict(variable.split("=", 1) for variable in self.config["Env"]) | dict(environment or {})
        run = ["chroot", f"--userspec={user}:{group}", root, "/usr/bin/python3.11", "-c", _ENTER, json.dumps(variables)]
        lines.append(f"exec {shlex.join([*run, *argv])}")
        return ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(lines)]


# The image has no `env`, and chroot passes on the variables of this machine.
_ENTER = (
    "import json, os, sys, shutil; variables = json.loads(sys.argv[1]); "
    "os.chdir('/'); os.execve(shutil.which(sys.argv[2], path=variables['PATH']), sys.argv[2:], variables)"
)


def may_mount() -> bool:
    """Whether this machine lets the tests mount and change the root directory."""
    return os.geteuid() == 0 and os.system("unshare --mount mount -t tmpfs tmpfs /mnt 2>/dev/null") == 0

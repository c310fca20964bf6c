"""Certificates for loopback, created by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def has_openssl_3() -> bool:
    """Whether OpenSSL 3 is installed, which can sign in one step."""
    program = shutil.which("openssl")
    return program is not None and b"OpenSSL 3" in subprocess.run([program, "version"], capture_output=True).stdout


def make_authority(directory: Path, name: str) -> Path:
    """Create an authority and return its certificate."""
    directory.mkdir(exist_ok=True)
    certificate = directory / f"{name}.pem"
    _openssl(
        *("req", "-x509", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", directory / f"{name}.key", "-out", certificate),
    )
    return certificate


def make_certificate(directory: Path, authority: str, name: str) -> Path:
    """Create a certificate for loopback, signed by `authority`, for servers and clients."""
    certificate = directory / f"{name}.pem"
    _openssl(
        *("req", "-x509", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-CA", directory / f"{authority}.pem", "-CAkey", directory / f"{authority}.key"),
        *("-keyout", directory / f"{name}.key", "-out", certificate),
    )
    return certificate


def _openssl(*arguments: str | Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    subprocess.run(["openssl", *map(str, arguments), *key], check=True, capture_output=True)

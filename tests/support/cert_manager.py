"""Certificates in the form that cert-manager issues for its CSI driver: no subject, critical names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from adapters.files.identity_files import AUTHORITIES, CERTIFICATE, PRIVATE_KEY
from penstock.wire.authority import Authority

CURVES = {"256": ec.SECP256R1, "384": ec.SECP384R1, "521": ec.SECP521R1}
FORMATS = {"PKCS8": serialization.PrivateFormat.PKCS8}
EXTENDED = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}


def write_requested_identity(directory: Path, attributes: Mapping[str, str], authority: Authority) -> None:
    """Write the files that the driver mounts for a volume with `attributes`."""
    assert attributes["key-algorithm"] == "ECDSA"
    key = ec.generate_private_key(CURVES[attributes["key-size"]]())
    usages = set(attributes["key-usages"].split(","))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in attributes["dns-names"].split(",")]
    names.append(x509.UniformResourceIdentifier(attributes["uri-sans"]))
    now = datetime.now(UTC)
    signing = authority._key
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(hours=int(attributes["duration"].removesuffix("h"))))
        .add_extension(_usage("digital signature" in usages), critical=True)
        .add_extension(x509.ExtendedKeyUsage([EXTENDED[name] for name in sorted(usages & EXTENDED.keys())]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(signing, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    files = {
        PRIVATE_KEY: key.private_bytes(pem, FORMATS[attributes["key-encoding"]], serialization.NoEncryption()),
        CERTIFICATE: certificate.public_bytes(pem),
        AUTHORITIES: authority.pem,
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o440)


def _usage(digital_signature: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature, False, False, False, False, False, False, False, False)

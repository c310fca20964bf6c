"""The software bill of materials (CycloneDX 1.6) of the image: Penstock, its Python packages, Debian's packages."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL


class InvalidBill(Exception):
    """The document does not follow the schema of CycloneDX."""


def bill_of_materials(
    site_packages: Iterable[Path], status_files: Iterable[Path], image_digest: str, version: str, time_s: int
) -> str:
    """Return the document as JSON, which follows from the arguments alone.

    Args:
        site_packages: directories with the metadata of Python packages.
        status_files: descriptions of Debian packages.
        image_digest: digest of the image's manifest.
        time_s: Unix time (s) of the commit.

    Raises:
        InvalidBill: the document does not follow the schema.
    """
    python = [_python(each) for each in distributions(path=[str(path) for path in site_packages])]
    debian = [_debian(HeaderParser().parsestr(file.read_text())) for file in status_files]
    image = Component(
        name="penstock",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL("oci", None, "penstock", image_digest),
    )
    document = Bom(
        components=sorted([*python, *debian], key=lambda component: str(component.bom_ref.value)),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"penstock/{version}/{image_digest}"),
        metadata=BomMetaData(component=image, timestamp=datetime.fromtimestamp(time_s, UTC)),
    )
    document.register_dependency(image, document.components)
    text: str = JsonV1Dot6(document).output_as_string(indent=1)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        raise InvalidBill(f"not valid CycloneDX 1.6: {fault}")
    return text + "\n"


def _python(distribution: Distribution) -> Component:
    name, version = distribution.metadata["Name"], distribution.version
    expression = HeaderParser().parsestr(distribution.read_text("METADATA") or "")["License-Expression"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi/{name}@{version}",
        purl=PackageURL("pypi", None, name.lower().replace("_", "-"), version),
        licenses=[LicenseFactory().make_from_string(expression)] if expression else [],
    )


def _debian(fields: Message[str, str]) -> Component:
    name, version = fields["Package"], fields["Version"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"deb/{name}@{version}",
        purl=PackageURL("deb", "debian", name, version, {"arch": fields["Architecture"], "distro": "debian-12"}),
    )

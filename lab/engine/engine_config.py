"""Reads and validates the configuration file of an engine process, with defaults from the hardware model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from lab.engine.accelerators import ACCELERATORS
from lab.engine.deployment import Deployment, min_deployment
from lab.engine.models import MODELS

MAX_FILE_BYTES = 1_000_000

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


class ConfigError(Exception):
    """The file is invalid. The message states the file, the field and the remedy."""


class _EndpointFields(msgspec.Struct, forbid_unknown_fields=True):
    """Configuration of one engine, as in the file."""

    name: Name
    """Name of the endpoint, unique in the file."""
    model: str
    """A name from lab.engine.models, which is also the default of `served_model_name`."""
    accelerator: str
    """A name from lab.engine.accelerators."""
    zone: str = ""
    """Failure domain of the engine, only reported at startup."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port to listen on; with 0 the system selects a port."""
    tensor_parallel: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    """Number of devices that share the model; the fewest that suffice if absent."""
    max_model_len: Annotated[int, msgspec.Meta(ge=16)] | None = None
    """Maximum tokens of prompt and response together; as many as fit if absent."""
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    """Maximum number of running sequences. The default is vLLM's, except on the largest devices."""
    max_num_batched_tokens: Annotated[int, msgspec.Meta(ge=16, le=131_072)] = 2048
    """Maximum number of new tokens per pass. The default is vLLM's, except on the largest devices. A lower value makes
    decoding smoother, a higher value makes prefill faster."""
    stream_interval: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Tokens per event of a stream, as vLLM's --stream-interval; the first event is sent without delay."""
    cold_start_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] | None = None
    """Load time of the model (s of the modelled hardware); computed from the model's size if absent."""
    time_scale: Annotated[float, msgspec.Meta(ge=0.01, le=1000)] = 1.0
    """Speed of the engine relative to the modelled hardware, loading included."""
    api_key: Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]*$", max_length=256)] = ""
    """Bearer token that requests below /v1 must have, as vLLM's --api-key; empty for none."""
    base_path: Annotated[str, msgspec.Meta(pattern=r"^(/[A-Za-z0-9._-]+)*$", max_length=256)] = ""
    """Prefix of every path, as behind a gateway; empty for none."""
    served_model_name: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Model name in requests, as vLLM's --served-model-name; empty for the name of the model."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """Configuration of one engine process, as in the file."""

    region: Name
    """Region of the engines, which the residency witness records."""
    witness_dir: str
    """Directory of the witness files, relative to the working directory; created if missing."""
    endpoints: Annotated[list[_EndpointFields], msgspec.Meta(min_length=1, max_length=2000)]
    host: str = "127.0.0.1"
    """Address to listen on."""


class EndpointConfig(msgspec.Struct, frozen=True):
    """Configuration of one engine with all defaults resolved."""

    name: str
    model: str
    accelerator: str
    zone: str
    port: int
    deployment: Deployment
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    stream_interval: int
    cold_start_s: float
    time_scale: float
    api_key: str
    base_path: str
    served_model_name: str


class EnginesConfig(msgspec.Struct, frozen=True):
    """Configuration of one engine process with all defaults resolved."""

    region: str
    host: str
    witness_dir: Path
    endpoints: tuple[EndpointConfig, ...]


def load_engines_config(path: Path) -> EnginesConfig:
    """Read a YAML (or JSON, which is YAML) file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        written = msgspec.convert(yaml.safe_load(path.read_text("utf-8")), _File)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    seen: set[str] = set()
    endpoints = []
    for index, fields in enumerate(written.endpoints):
        if fields.name in seen:
            raise ConfigError(f"{path}: endpoints[{index}].name: {fields.name!r} is taken; names have to be unique")
        seen.add(fields.name)
        endpoints.append(_complete(fields, f"{path}: endpoints[{index}]"))
    return EnginesConfig(written.region, written.host, Path(written.witness_dir), tuple(endpoints))


def _complete(fields: _EndpointFields, where: str) -> EndpointConfig:
    model, accelerator = MODELS.get(fields.model), ACCELERATORS.get(fields.accelerator)
    if model is None:
        raise ConfigError(f"{where}.model: {fields.model!r} is not known; choose one of {', '.join(MODELS)}")
    if accelerator is None:
        known = ", ".join(ACCELERATORS)
        raise ConfigError(f"{where}.accelerator: {fields.accelerator!r} is not known; choose one of {known}")
    if fields.tensor_parallel is None:
        deployment = min_deployment(model, accelerator)
    else:
        deployment = Deployment(model, accelerator, fields.tensor_parallel)
    if deployment is None or deployment.kv_blocks == 0:
        raise ConfigError(
            f"{where}.tensor_parallel: {model.name} does not fit on {fields.tensor_parallel or 8} {accelerator.name}; "
            "give it more or larger devices"
        )
    longest = deployment.max_sequence_tokens
    max_model_len = longest if fields.max_model_len is None else fields.max_model_len
    if max_model_len > longest:
        raise ConfigError(
            f"{where}.max_model_len: {max_model_len} tokens do not fit; {longest} is the most that {model.name} can "
            f"have on {deployment.tensor_parallel} {accelerator.name}"
        )
    resolved = msgspec.structs.asdict(fields) | {
        "deployment": deployment,
        "max_model_len": max_model_len,
        "cold_start_s": deployment.load_s if fields.cold_start_s is None else fields.cold_start_s,
        "served_model_name": fields.served_model_name or model.name,
    }
    del resolved["tensor_parallel"]
    return EndpointConfig(**resolved)

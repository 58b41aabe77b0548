"""What a measurement was made on: without it a number means nothing."""

import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec

from headrace.cores import num_cores

_PACKAGES = ("headrace", "tokenizers", "fastokens", "numpy", "uvloop")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    num_cores: int
    """That this process may use."""
    load: float
    """Average of the last minute, when the measurement began: more than a little makes it worth less."""
    system: str
    python: str
    packages: dict[str, str]


def describe() -> Machine:
    return Machine(
        cpu=_cpu_name(),
        num_cores=num_cores(),
        load=round(os.getloadavg()[0], 2),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={package: version for package in _PACKAGES if (version := _version(package))},
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

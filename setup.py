"""Builds what is in C where a C compiler is there. Without one, or if it fails, it is left out and the same is computed
by plain torch, numpy and Python; everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

KERNELS = Path("src/headrace/engine/kernels/csrc")
NATIVE = Path("src/headrace/_native")


def compiled(name: str, sources: Path, flags: list[str]) -> Extension:
    return Extension(
        name,
        sources=sorted(str(path) for path in sources.glob("*.c")),
        depends=sorted(str(path) for path in sources.glob("*.h")),
        extra_compile_args=["-std=c11", "-O3", "-g0", *flags],
        extra_link_args=["-pthread"],
        optional=True,
    )


EXTENSIONS = [
    # not a Python module, and not among any: ctypes loads it
    compiled("headrace.engine.kernels.csrc._kernels", KERNELS, ["-fno-math-errno", "-fno-trapping-math", "-pthread"]),
    compiled("headrace._native._compiled", NATIVE, []),
]

setup(ext_modules=[] if sys.platform == "win32" else EXTENSIONS)

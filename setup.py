"""Builds the engine's CPU kernels where a C compiler is there. Without one, or if it fails, they are left out and the
engine computes by plain torch; everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/headrace/engine/kernels/csrc")

kernels = Extension(
    "headrace.engine.kernels.csrc._kernels",  # not a Python module, and not among any: ctypes loads it
    sources=sorted(str(path) for path in SOURCES.glob("*.c")),
    depends=sorted(str(path) for path in SOURCES.glob("*.h")),
    extra_compile_args=["-std=c11", "-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)

setup(ext_modules=[] if sys.platform == "win32" else [kernels])

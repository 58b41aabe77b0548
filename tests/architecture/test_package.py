"""What holds for the package as a whole: it imports fast, alone, and says what it exports."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys; print('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
    finished = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(finished.stdout.split())


def test_import_headrace_loads_no_dependency() -> None:
    heavy = {"torch", "numpy", "tokenizers", "msgspec", "starlette", "asyncio", "jinja2", "rich"}

    assert not modules_after("import headrace") & heavy


def test_the_gateway_and_the_front_end_of_the_engine_need_no_torch() -> None:
    statement = "import headrace.gateway.run, headrace.server.run, headrace.engine"

    assert not modules_after(statement) & {"torch", "transformers", "ray"}


def test_every_public_name_of_the_package_exists() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None, name


def test_every_module_opens_with_what_it_owns() -> None:
    without = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.stat().st_size and path.name != "_version.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert without == []


def test_every_name_in_an_all_exists() -> None:
    for module in pkgutil.walk_packages([str(SOURCE)], prefix="headrace."):
        if module.name == "headrace.cli.main":
            continue
        loaded = importlib.import_module(module.name)
        missing = [name for name in getattr(loaded, "__all__", ()) if not hasattr(loaded, name)]
        assert missing == [], module.name

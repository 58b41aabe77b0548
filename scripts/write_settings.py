"""Writes docs/settings.md from the settings dataclasses: every setting by its three names, with its default.

.venv/bin/python scripts/write_settings.py
"""

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

from headrace.cli.flags import field_docs, flag_of, typed_fields
from headrace.cli.launch import FLAG_PREFIXES
from headrace.cli.setting_types import is_bool, is_tuple, placeholder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
_COMMANDS = ("gateway", "serve")
_POSITIONAL = {("engine", "model"): "MODEL_DIR"}
_HEAD = """\
# Settings

Made by `scripts/write_settings.py`; a test holds it to the code.

Each setting is a flag, a key of the YAML file given with `--config`, and an environment name, in that order of
precedence: `--tokenize-timeout-s 50ms`, `gateway: {tokenize_timeout_s: 50ms}`,
`HEADRACE_GATEWAY_TOKENIZE_TIMEOUT_S=50ms`. The section of a table is the key's first part and the middle of the
environment name. Durations and sizes carry units (`30s`, `5m`, `64KiB`). A flag for a list is given once for each
entry; in the environment commas stand between entries. `headrace config gateway` prints what holds now and where each
value came from.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(line for command in _COMMANDS for line in _command(command))])


def _command(name: str) -> Iterator[str]:
    module = importlib.import_module(f"headrace.cli.{name}")
    yield f"## headrace {name}\n"
    for section, settings_type in module.COMPONENTS.items():
        yield f"### {section}\n"
        yield "| flag | value | default | |\n|---|---|---|---|"
        docs = field_docs(settings_type)
        for field, field_type in typed_fields(settings_type):
            flag = _POSITIONAL.get((section, field.name)) or flag_of(FLAG_PREFIXES[section] + field.name)
            text = docs.get(field.name, "").replace("|", "\\|")
            yield f"| `{flag}` | {_value(field_type)} | {_default(field, placeholder(field_type))} | {text} |"
        yield ""


def _value(field_type: object) -> str:
    value = "on, off" if is_bool(field_type) else placeholder(field_type).strip("{}").replace(",", ", ")
    return f"{value}, several" if is_tuple(field_type) else value


def _default(field: "dataclasses.Field[object]", kind: str) -> str:
    value = field.default
    if value is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    if value is dataclasses.MISSING or value in (None, (), ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if kind == "DURATION" and isinstance(value, float | int):
        return f"`{value:g}s`"
    return f"`{_size(value)}`" if kind == "SIZE" and isinstance(value, int) else f"`{value}`"


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes and num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

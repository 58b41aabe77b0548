"""`headrace config serve|gateway [FLAGS]`: the whole resolved set of settings and where each value came from."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from headrace.cli.flags import typed_fields
from headrace.cli.launch import Sources
from headrace.cli.secrets import shown
from headrace.cli.settings import Resolved

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FILE_COLUMNS = 240
"""A file or a pipe has no width, and a table cut to 80 columns loses its names."""
_COMMANDS = {"serve": "headrace.cli.serve", "gateway": "headrace.cli.gateway"}


def run(argv: Sequence[str]) -> int:
    """Print the settings that the command would run with; the exit status."""
    arguments = _parser().parse_args(argv)
    command = importlib.import_module(_COMMANDS[arguments.command])
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    console.print(_table(resolve_all(command, arguments.arguments)))
    return 0


def resolve_all(command: ModuleType, argv: Sequence[str]) -> "list[Resolved[DataclassInstance]]":
    """The settings of every component of `command`, as the command itself would resolve them."""
    sources = Sources(command.parser().parse_args(argv))
    return [sources.resolve(settings_type, section=section) for section, settings_type in command.COMPONENTS.items()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace config", description=__doc__)
    parser.add_argument("command", choices=_COMMANDS, help="the command whose settings to print")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the flags to resolve")
    return parser


def _table(components: "list[Resolved[DataclassInstance]]") -> Table:
    table = Table("setting", "value", "from", box=None)
    for resolved in components:
        for field, field_type in typed_fields(type(resolved.settings)):
            name = f"{resolved.section}.{field.name}"
            value = shown(getattr(resolved.settings, field.name), field_type)
            table.add_row(name, value, resolved.origins.get(field.name, "derived"))
    return table

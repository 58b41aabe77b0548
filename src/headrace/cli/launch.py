"""What every server command shares: its common flags, the sources of its settings, its log and its event loop."""

import argparse
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import uvloop

from headrace import log
from headrace.cli.flags import add_flags
from headrace.cli.settings import Resolved, SettingsFile, read_file, refuse_unknown_sections, resolve

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

FLAG_PREFIXES = {
    "engine": "",
    "front_end": "",
    "server": "",
    "gateway": "",
    "admission": "",
    "tokenization": "tokenization_",
    "ray": "ray_",
}
"""Every section that a settings file may have, one per component, and what stands before the names of its flags."""


class Sources:
    """The command line, the settings file it names and the environment, ready to resolve components from."""

    def __init__(self, arguments: argparse.Namespace, *, environment: Mapping[str, str] | None = None) -> None:
        self._flags = vars(arguments)
        self._file: SettingsFile = read_file(arguments.config)
        self._environment = os.environ if environment is None else environment
        refuse_unknown_sections(self._file, self._environment, tuple(FLAG_PREFIXES))

    def resolve(self, settings_type: type[T], *, section: str) -> Resolved[T]:
        """The settings of one component; raises SettingsError."""
        return resolve(
            settings_type,
            section=section,
            flags=self._flags,
            file=self._file,
            environment=self._environment,
            flag_prefix=FLAG_PREFIXES[section],
        )


def parser_of(
    command: str, *, description: str, components: "Mapping[str, type[DataclassInstance]]", skip: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """A parser with the common flags and a flag for each setting of each component."""
    # No abbreviations: `--endpoints URL` would be taken for the flag of a file, and a new flag would end an old script.
    parser = argparse.ArgumentParser(prog=f"headrace {command}", description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="a YAML file with a section of settings per component")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"))
    for section, settings_type in components.items():
        group = parser.add_argument_group(section.replace("_", " "))
        add_flags(group, settings_type, prefix=FLAG_PREFIXES[section], skip=skip)
    return parser


def run_in_event_loop(main: Coroutine[object, object, None], arguments: argparse.Namespace) -> int:
    """Run a server to its end on a fresh uvloop; its exit status."""
    log.configure(level=arguments.log_level, log_format=cast("log.LogFormat", arguments.log_format))
    uvloop.run(main)
    return 0

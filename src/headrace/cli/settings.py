"""Turns flags, a YAML file and the environment into the frozen settings dataclass of a component.

Precedence: flag, then file, then environment, then the field's default. Only this package reads those sources; a
component sees the finished dataclass. Nothing here knows what any setting means.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import yaml

from headrace.cli.flags import flag_of, typed_fields
from headrace.cli.secrets import is_secret, look_up, shown
from headrace.cli.setting_types import read
from headrace.errors import SettingsError
from headrace.yaml_text import read_yaml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

SettingsFile = Mapping[str, Mapping[str, object]]
"""Sections of settings by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved(Generic[T]):
    """The settings of one component, and for each field where its value came from."""

    section: str
    settings: T
    origins: Mapping[str, str]

    def is_from_file(self, name: str) -> bool:
        """Whether the value of a field stands in the settings file."""
        return self.origins[name] == _in_file(self.section, name)


def read_file(path: str | None) -> SettingsFile:
    """The sections of a YAML settings file; empty without a path. Raises SettingsError naming the file."""
    if path is None:
        return {}
    try:
        content = read_yaml(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"--config {path}: cannot be read: {error}", param="config") from error
    if not isinstance(content, dict) or not all(isinstance(section, dict) for section in content.values()):
        raise SettingsError(f"--config {path}: expected sections such as 'gateway:' with settings under them")
    return content


def resolve(
    settings_type: type[T],
    *,
    section: str,
    flags: Mapping[str, object],
    file: SettingsFile,
    environment: Mapping[str, str],
    flag_prefix: str = "",
) -> Resolved[T]:
    """Build `settings_type` from the sources. `flag_prefix` stands before the names of its flags.

    Raises SettingsError with the name, the value and what was expected for an unknown name or an unreadable value.
    """
    prefix = f"HEADRACE_{section.upper()}_"
    in_file = file.get(section, {})
    in_environment = {key[len(prefix) :].lower(): text for key, text in environment.items() if key.startswith(prefix)}
    names = [field.name for field, _ in typed_fields(settings_type)]
    _refuse_unknown(in_file, names, where=f"setting in section '{section}' of the settings file")
    _refuse_unknown(in_environment, names, where=f"setting of an environment variable {prefix}...")

    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for field, field_type in typed_fields(settings_type):
        name = field.name
        for origin, given in (
            (flag_of(flag_prefix + name), flags.get(flag_prefix + name)),
            (_in_file(section, name), in_file.get(name)),
            (prefix + name.upper(), in_environment.get(name)),
        ):
            if given is not None:
                values[name] = _read(given, field_type, origin=origin, name=name, environment=environment)
                origins[name] = origin
                break
        else:
            _refuse_missing(field, section=section)
            origins[name] = "default"
    return Resolved(section=section, settings=settings_type(**values), origins=origins)


def _in_file(section: str, name: str) -> str:
    """How the origin of a value from the settings file is written."""
    return f"{section}.{name} in the settings file"


def refuse_unknown_sections(file: SettingsFile, environment: Mapping[str, str], sections: Sequence[str]) -> None:
    """Raise SettingsError for a section of the settings file, or an environment name, that no component reads."""
    _refuse_unknown(file, sections, where="section of the settings file")
    prefixes = tuple(f"HEADRACE_{section.upper()}_" for section in sections)
    for name in environment:
        if name.startswith("HEADRACE_") and not name.startswith(prefixes):
            known = ", ".join(f"{prefix}..." for prefix in prefixes)
            raise SettingsError(f"the environment name {name} belongs to no component; known are {known}", param=name)


def _refuse_unknown(given: Mapping[str, object], known: Sequence[str], *, where: str) -> None:
    for name in given:
        if name not in known:
            raise SettingsError(f"{name!r} is not a known {where}; known are {', '.join(sorted(known))}", param=name)


def _refuse_missing(field: "dataclasses.Field[object]", *, section: str) -> None:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        raise SettingsError(
            f"{field.name} is required: give it on the command line, as {section}.{field.name} in the settings file or "
            f"as HEADRACE_{section.upper()}_{field.name.upper()}",
            param=field.name,
        )


def _read(value: object, field_type: object, *, origin: str, name: str, environment: Mapping[str, str]) -> object:
    try:
        setting = read(value, field_type)
        return look_up(setting, environment=environment) if is_secret(field_type) else setting
    except ValueError as error:
        raise SettingsError(f"{origin} = {shown(value, field_type)} cannot be read: {error}", param=name) from error

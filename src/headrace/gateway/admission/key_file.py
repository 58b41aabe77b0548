"""The YAML file of API keys: reading it, and writing it so that no reader ever sees half of it.

keys:
- name: alice
  hash: sha256:9f86d0...
  created: 2026-11-21T12:00:00+00:00
  expires: 2027-01-01T00:00:00+00:00
  requests_per_minute: 60
  tokens_per_minute: 90000
  concurrent_requests: 8
  budgets: {day: 5.00, month: 100}
  models: [llama]
  priority: normal
  weight: 2
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from headrace.errors import SettingsError
from headrace.gateway.admission.budget import Budget, Period
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import KeyLimits
from headrace.gateway.admission.prices import money_text, parse_money
from headrace.gateway.admission.priority import PriorityClass
from headrace.gateway.admission.token_bucket import MAX_PER_MINUTE
from headrace.yaml_text import read_yaml

MAX_KEYS = 100_000

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
_Hash = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
_PerMinute = Annotated[int, msgspec.Meta(ge=1, le=MAX_PER_MINUTE)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]
_HASH_PREFIX = "sha256:"
_KEY_PREFIX = "hr-"


class KeyEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key as the file has it."""

    name: _Name
    hash: _Hash
    created: _Time | None = None
    expires: _Time | None = None
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    concurrent_requests: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budgets: dict[Period, str | int | float] = {}
    models: list[str] | None = None
    priority: PriorityClass = "interactive"
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[KeyEntry] = []


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in the file. Raises SettingsError naming the file, and the field and value that are wrong."""
    return [_key_of(entry, path) for entry in read_entries(path)]


def read_entries(path: Path) -> list[KeyEntry]:
    """The same as the file has them."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8")) or {}
        entries = msgspec.convert(content, _KeyFile).keys
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"keys_file {path}: cannot be read: {error}", param="keys_file") from error
    except msgspec.ValidationError as error:
        raise SettingsError(f"keys_file {path}: {error}", param="keys_file") from error
    if len(entries) > MAX_KEYS:
        raise SettingsError(f"keys_file {path} has {len(entries)} keys; {MAX_KEYS} is the limit", param="keys_file")
    for what, values in (("name", [one.name for one in entries]), ("hash", [one.hash for one in entries])):
        _refuse_twice(what, values, path)
    return entries


def write_entries(path: Path, entries: Sequence[KeyEntry]) -> None:
    """Put a new file in the place of the old, readable by its owner only. Raises SettingsError."""
    content = {"keys": [msgspec.to_builtins(entry) for entry in entries]}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise SettingsError(f"keys_file {path}: cannot be written: {error}", param="keys_file") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time change the file: two that add a key at once must not lose one."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise SettingsError(f"keys_file {path}: no such directory: {error}", param="keys_file") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return _KEY_PREFIX + secrets.token_urlsafe(32)


def hash_text(digest: bytes) -> str:
    """How the file writes a digest."""
    return _HASH_PREFIX + digest.hex()


def _refuse_twice(what: str, values: Sequence[str], path: Path) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise SettingsError(f"keys_file {path}: two keys have the {what} {value!r}", param="keys_file")
        seen.add(value)


def _key_of(entry: KeyEntry, path: Path) -> ApiKey:
    return ApiKey(
        name=entry.name,
        digest=bytes.fromhex(entry.hash.removeprefix(_HASH_PREFIX)),
        created_s=entry.created.timestamp() if entry.created else None,
        expires_s=entry.expires.timestamp() if entry.expires else None,
        models=frozenset(entry.models) if entry.models is not None else None,
        priority=entry.priority,
        weight=entry.weight,
        limits=KeyLimits(
            requests_per_minute=entry.requests_per_minute,
            tokens_per_minute=entry.tokens_per_minute,
            concurrent_requests=entry.concurrent_requests,
            budgets=tuple(_budgets_of(entry, path)),
        ),
    )


def _budgets_of(entry: KeyEntry, path: Path) -> Iterator[Budget]:
    for period, amount in entry.budgets.items():
        try:
            yield Budget(period=period, amount=parse_money(str(amount)))
        except ValueError as error:
            message = f"keys_file {path}: key {entry.name!r}, budget per {period}: {error}"
            raise SettingsError(message, param="keys_file") from error


def describe(key: ApiKey) -> str:
    """The limits of a key in one line, for lists."""
    limits = key.limits
    parts = [
        f"{limits.requests_per_minute} requests/min" if limits.requests_per_minute else "",
        f"{limits.tokens_per_minute} tokens/min" if limits.tokens_per_minute else "",
        f"{limits.concurrent_requests} at a time" if limits.concurrent_requests else "",
        *(f"{money_text(budget.amount)} per {budget.period}" for budget in limits.budgets),
        f"models {', '.join(sorted(key.models))}" if key.models is not None else "",
        f"priority {key.priority}" if key.priority != "interactive" else "",
        f"weight {key.weight}" if key.weight != 1 else "",
        f"expires {datetime.fromtimestamp(key.expires_s, UTC):%Y-%m-%d %H:%M} UTC" if key.expires_s else "",
    ]
    return "; ".join(part for part in parts if part) or "no limits"

"""`headrace keys add|list|revoke --keys-file FILE`: the API keys of a gateway, which reads the file again by itself."""

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from headrace.errors import SettingsError
from headrace.gateway.admission.key_file import (
    KeyEntry,
    describe,
    hash_text,
    locked,
    new_key,
    read_entries,
    read_keys,
    write_entries,
)
from headrace.gateway.admission.keys import digest_of, fingerprint_of
from headrace.gateway.admission.prices import parse_money
from headrace.gateway.admission.priority import PRIORITIES
from headrace.units import parse_duration

_MAX_LIFETIME_S = 36_500 * 86_400


def run(argv: Sequence[str]) -> int:
    """Do what the subcommand says; the exit status."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.run
    return command(arguments)


def _add(arguments: argparse.Namespace) -> int:
    path: Path = arguments.keys_file
    key = new_key()
    entry = _entry_of(arguments, key, now=datetime.now(UTC).replace(microsecond=0))
    with locked(path):
        entries = read_entries(path) if path.exists() else []
        if any(one.name == entry.name for one in entries):
            raise SettingsError(f"{path} has a key {entry.name!r} already; revoke it first, or choose another name")
        write_entries(path, [*entries, entry])
        try:
            print(key, flush=True)
        except OSError:  # a key that nobody has seen must not stay
            write_entries(path, entries)
            raise
    return 0


def _list(arguments: argparse.Namespace) -> int:
    table = Table("name", "fingerprint", "created", "limits", box=None)
    for key in read_keys(arguments.keys_file):
        created = f"{datetime.fromtimestamp(key.created_s, UTC):%Y-%m-%d}" if key.created_s else ""
        table.add_row(key.name, fingerprint_of(key.digest), created, describe(key))
    Console(soft_wrap=True).print(table)
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    path: Path = arguments.keys_file
    with locked(path):
        entries = read_entries(path)
        left = [entry for entry in entries if entry.name != arguments.name]
        if len(left) == len(entries):
            raise SettingsError(f"{path} has no key {arguments.name!r}; headrace keys list shows those that it has")
        write_entries(path, left)
    print(f"revoked {arguments.name}; gateways that run follow within seconds")
    return 0


def _entry_of(arguments: argparse.Namespace, key: str, *, now: datetime) -> KeyEntry:
    periods = [period for period, _ in arguments.budget]
    if len(set(periods)) < len(periods):
        raise SettingsError(f"--budget is given twice for one of {', '.join(periods)}; give each period once")
    entry = KeyEntry(
        name=arguments.name,
        hash=hash_text(digest_of(key.encode("ascii"))),
        created=now,
        expires=now + arguments.expires_in if arguments.expires_in is not None else None,
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_minute=arguments.tokens_per_minute,
        concurrent_requests=arguments.concurrent_requests,
        budgets=dict(arguments.budget),
        models=arguments.model,
        priority=arguments.priority,
        weight=arguments.weight,
    )
    try:  # by the rules that the file is read by
        return msgspec.convert(msgspec.to_builtins(entry), KeyEntry)
    except msgspec.ValidationError as error:
        raise SettingsError(f"this key cannot be added: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace keys", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="add|list|revoke")
    add = _command(commands, "add", _add, "add a key and print it; it is not shown again")
    add.add_argument("name", help="what the key is called in lists and logs")
    _add_limits(add)
    _command(commands, "list", _list, "show names and limits")
    revoke = _command(commands, "revoke", _revoke, "take a key away")
    revoke.add_argument("name")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run_command: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.add_argument("--keys-file", type=Path, required=True, metavar="FILE", help="the YAML file of keys")
    command.set_defaults(run=run_command)
    return command


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests-per-minute", type=int, metavar="N")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="prompt and completion together")
    parser.add_argument("--concurrent-requests", type=int, metavar="N")
    parser.add_argument(
        "--budget",
        type=_budget,
        action="append",
        default=[],
        metavar="PERIOD=AMOUNT",
        help="what it may spend per hour, day, month or in total, such as month=20; may be given several times",
    )
    parser.add_argument("--model", action="append", metavar="NAME", help="a model that it may use; default: all")
    parser.add_argument("--priority", choices=PRIORITIES, default="interactive", help="the highest class it may have")
    parser.add_argument("--weight", type=int, default=1, metavar="N", help="its share of a queue")
    parser.add_argument("--expires-in", type=_lifetime, metavar="DURATION", help="such as 30d")


def _budget(text: str) -> tuple[str, str]:
    period, separator, amount = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not PERIOD=AMOUNT")
    try:
        parse_money(amount)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return period, amount


def _lifetime(text: str) -> timedelta:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 1 <= seconds <= _MAX_LIFETIME_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1s and 36500d; leave it out for a key that stays")
    return timedelta(seconds=seconds)

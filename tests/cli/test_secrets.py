from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.cli.config import resolve_all
from headrace.cli.secrets import shown
from headrace.cli.settings import resolve
from headrace.errors import SettingsError
from headrace.units import Secret

KEY = "sk-0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Safe:
    keys: tuple[Secret, ...] = ()
    key: Secret | None = None
    state: str = "memory"


def resolved(environment: Mapping[str, str] | None = None, **flags: object) -> Safe:
    return resolve(Safe, section="safe", flags=flags, file={}, environment=environment or {}).settings


def test_a_secret_may_be_kept_in_the_environment() -> None:
    assert resolved({"MY_KEY": KEY}, key="env:MY_KEY").key == KEY


def test_a_secret_may_be_kept_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")

    assert resolved(key=f"file:{tmp_path / 'key'}").key == KEY


def test_also_behind_the_url_that_it_is_for() -> None:
    keys = ["http://127.0.0.1:1=env:MY_KEY", "https://h/v1=plain=", "env:MY_KEY"]

    assert resolved({"MY_KEY": KEY}, keys=keys).keys == (f"http://127.0.0.1:1={KEY}", "https://h/v1=plain=", KEY)


@pytest.mark.parametrize("given", ["env:NOT_THERE", "file:/not/there"])
def test_one_that_is_not_there_stops_the_start_by_name(given: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolved(key=given)

    assert caught.value.param == "key"
    assert given.partition(":")[2] in caught.value.message


def test_other_settings_are_no_references() -> None:
    assert resolved({"MY_KEY": KEY}, state="env:MY_KEY").state == "env:MY_KEY"


@pytest.mark.parametrize(
    ("value", "field_type", "text"),
    [
        (KEY, Secret, "'***'"),
        (None, Secret | None, "None"),
        ((KEY, f"http://h:1={KEY}"), tuple[Secret, ...], "('***', 'http://h:1=***')"),
        ((), tuple[Secret, ...], "()"),
        (f"redis://user:{KEY}@host:6379/0", str, "'redis://user:***@host:6379/0'"),
        (f"redis://:{KEY}@host", str, "'redis://:***@host'"),
        ("redis://host:6379/0", str, "'redis://host:6379/0'"),
        (
            (f'{{"url":"http://h:1","api_key":"{KEY}"}}',),
            tuple[str, ...],
            """('{"url":"http://h:1","api_key":"***"}',)""",
        ),
        ("http://127.0.0.1:8000", str, "'http://127.0.0.1:8000'"),
    ],
)
def test_what_is_printed_shows_no_secret(value: object, field_type: object, text: str) -> None:
    assert shown(value, field_type) == text


def test_the_printed_settings_of_a_gateway_show_no_key() -> None:
    from headrace.cli import config, gateway  # as `headrace config` imports them

    flags = [
        "--endpoint",
        "http://h:1",
        "--upstream-api-key",
        KEY,
        "--admin-api-key",
        KEY,
        "--state",
        f"redis://:{KEY}@h",
    ]
    components = resolve_all(gateway, flags)
    table = config._table(components)

    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert len(cells) > 100
    assert not [cell for cell in cells if KEY in cell]
    assert not [one for one in components if KEY in repr(one.settings)]


def test_an_unusable_key_is_refused_without_being_shown() -> None:
    from headrace.gateway.settings import GatewaySettings

    with pytest.raises(SettingsError) as caught:
        GatewaySettings(endpoint=("http://h:1",), upstream_api_key=(f"{KEY} x",))

    assert caught.value.param == "upstream_api_key"
    assert KEY not in caught.value.message

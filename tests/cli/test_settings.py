"""Settings: which source wins, how texts are read, and what a wrong one says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from headrace.cli.flags import field_docs
from headrace.cli.settings import Resolved, SettingsFile, read_file, refuse_unknown_sections, resolve
from headrace.errors import SettingsError
from headrace.units import NumBytes, Seconds


@dataclass(frozen=True, kw_only=True)
class Base:
    host: str = "127.0.0.1"
    """Address to
    listen on."""


@dataclass(frozen=True, kw_only=True)
class Example(Base):
    endpoint: tuple[str, ...] = ()
    """Where to send requests."""

    timeout_s: Seconds = 30.0
    max_body: NumBytes = 1024
    ttl_s: Seconds | None = None
    workers: int = 1
    ratio: float = 0.5
    verbose: bool = False
    policy: Literal["prefix", "round_robin"] = "prefix"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingsError(f"workers = {self.workers} must be at least 1", param="workers")


@dataclass(frozen=True, kw_only=True)
class Required:
    model: str


def resolve_example(
    flags: dict[str, object] | None = None,
    file: SettingsFile | None = None,
    environment: dict[str, str] | None = None,
) -> Resolved[Example]:
    return resolve(Example, section="gateway", flags=flags or {}, file=file or {}, environment=environment or {})


def test_a_flag_wins_over_the_file_and_the_file_over_the_environment() -> None:
    resolved = resolve_example(
        {"workers": "2"},
        {"gateway": {"workers": 3, "host": "file"}},
        {"HEADRACE_GATEWAY_WORKERS": "4", "HEADRACE_GATEWAY_HOST": "environment", "HEADRACE_GATEWAY_RATIO": "0.25"},
    )

    assert (resolved.settings.workers, resolved.settings.host, resolved.settings.ratio) == (2, "file", 0.25)


def test_every_value_says_where_it_came_from() -> None:
    resolved = resolve_example({"workers": "2"}, {"gateway": {"host": "file"}}, {"HEADRACE_GATEWAY_RATIO": "0.25"})

    assert resolved.origins["workers"] == "--workers"
    assert resolved.origins["host"] == "gateway.host in the settings file"
    assert resolved.origins["ratio"] == "HEADRACE_GATEWAY_RATIO"
    assert resolved.origins["policy"] == "default"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout_s", "250ms", 0.25),
        ("timeout_s", "5m", 300.0),
        ("timeout_s", "7", 7.0),
        ("max_body", "64KiB", 65536),
        ("max_body", "10MB", 10_000_000),
        ("ttl_s", "none", None),
        ("ttl_s", "1h", 3600.0),
        ("workers", "8", 8),
        ("ratio", "1e-3", 0.001),
        ("verbose", "yes", True),
        ("verbose", "off", False),
        ("policy", "round_robin", "round_robin"),
        ("endpoint", "http://a, http://b", ("http://a", "http://b")),
    ],
)
def test_a_text_is_read_by_the_type_of_its_field(name: str, text: str, value: object) -> None:
    resolved = resolve_example(environment={f"HEADRACE_GATEWAY_{name.upper()}": text})

    assert getattr(resolved.settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("timeout_s", "5 parsecs", "a duration such as"),
        ("timeout_s", "-1s", "a duration such as"),
        ("max_body", "64 KiloBytes", "a size such as"),
        ("max_body", "0.3B", "whole number of bytes"),
        ("workers", "1.5", "a whole number"),
        ("ratio", "half", "a number"),
        ("verbose", "perhaps", "true or false"),
        ("policy", "random", "one of prefix, round_robin"),
    ],
)
def test_an_unreadable_value_is_refused_with_its_name_the_value_and_what_was_expected(
    name: str, text: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        resolve_example({name: text})

    assert f"--{name.replace('_', '-')} = {text!r}" in caught.value.message
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("file", "environment"),
    [({"gateway": {"wrokers": 1}}, {}), ({}, {"HEADRACE_GATEWAY_WROKERS": "1"})],
)
def test_an_unknown_name_is_refused_wherever_it_stands(
    file: dict[str, dict[str, object]], environment: dict[str, str]
) -> None:
    with pytest.raises(SettingsError, match="'wrokers' is not a known setting"):
        resolve_example(file=file, environment=environment)


def test_an_environment_name_of_no_component_is_refused() -> None:
    with pytest.raises(SettingsError, match="HEADRACE_GATWAY_PORT belongs to no component"):
        refuse_unknown_sections({}, {"HEADRACE_GATWAY_PORT": "1"}, ("gateway", "server"))


def test_a_prefix_keeps_the_flags_of_two_components_apart() -> None:
    resolved = resolve(
        Example, section="x", flags={"x_workers": "5", "workers": "9"}, file={}, environment={}, flag_prefix="x_"
    )

    assert (resolved.settings.workers, resolved.origins["workers"]) == (5, "--x-workers")


def test_another_components_environment_is_left_alone() -> None:
    assert resolve_example(environment={"HEADRACE_SERVER_WROKERS": "1"}).settings.workers == 1


def test_a_value_that_the_component_refuses_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="workers = 0 must be at least 1"):
        resolve_example({"workers": "0"})


def test_a_missing_required_setting_says_where_to_give_it() -> None:
    with pytest.raises(SettingsError, match=r"model is required.*engine\.model.*HEADRACE_ENGINE_MODEL"):
        resolve(Required, section="engine", flags={}, file={}, environment={})


def test_the_text_under_a_field_is_its_documentation_also_of_a_base_class() -> None:
    assert field_docs(Example) == {"host": "Address to listen on.", "endpoint": "Where to send requests."}


@pytest.mark.parametrize("content", ["gateway: [1, 2", "- a\n- b", "gateway: 3", "\xff"])
def test_a_settings_file_that_is_not_sections_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(content.encode("latin-1"))

    with pytest.raises(SettingsError, match=r"settings\.yaml"):
        read_file(str(path))


def test_a_settings_file_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml"):
        read_file(str(tmp_path / "absent.yaml"))

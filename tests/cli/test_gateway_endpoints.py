"""Endpoints in a settings file: as URLs or mappings, and whether the file is to be followed."""

from pathlib import Path

from headrace.cli.gateway import parser
from headrace.cli.launch import Sources
from headrace.cli.settings import Resolved
from headrace.gateway.discovery.sources import parse_entries
from headrace.gateway.settings import GatewaySettings

FILE = """
gateway:
  endpoint:
  - http://a:1
  - {url: http://b:2, weight: 3, api_key: sk-secret}
"""


def resolved(path: Path, *flags: str, environment: dict[str, str] | None = None) -> Resolved[GatewaySettings]:
    path.write_text(FILE)
    arguments = parser().parse_args(["--config", str(path), *flags])
    return Sources(arguments, environment=environment or {}).resolve(GatewaySettings, section="gateway")


def test_a_mapping_in_the_settings_file_describes_an_endpoint(tmp_path: Path) -> None:
    one, two = parse_entries(resolved(tmp_path / "f.yaml").settings.endpoint)

    assert (one.url, two.url, two.weight, two.api_key) == ("http://a:1", "http://b:2", 3.0, "sk-secret")


def test_the_file_is_followed_only_where_its_list_is_in_force(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    environment = {"HEADRACE_GATEWAY_ENDPOINT": "http://e:5"}

    assert resolved(path, environment=environment).is_from_file("endpoint")
    assert not resolved(path, "--endpoint", "http://c:3").is_from_file("endpoint")


def test_the_key_of_the_admin_api_is_not_shown(tmp_path: Path) -> None:
    settings = resolved(tmp_path / "f.yaml", "--admin-api-key", "a-very-secret-admin-key").settings

    assert "very-secret" not in repr(settings)

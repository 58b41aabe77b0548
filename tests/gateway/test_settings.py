from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.gateway.settings import GatewaySettings, tokenizer_paths
from headrace.gateway.upstream.address import parse_address

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("endpoint", {"endpoint": ()}),
        ("endpoint", {"endpoint": ("localhost:8000",)}),
        ("endpoint", {"endpoint": ("http://a:99999",)}),
        ("endpoint", {"endpoint": (f"http://{'a' * 64}.org",)}),
        ("endpoint", {"endpoint": (URL, URL + "/v1/")}),
        ("port", {"port": 70000}),
        ("admin_port", {"admin_port": 65536}),
        ("max_attempts", {"max_attempts": 0}),
        ("connect_timeout_s", {"connect_timeout_s": 0.0}),
        ("tokenizer_path", {"tokenizer_path": ("demo=",)}),
        ("tokenizer_path", {"tokenizer_path": ("a", "b")}),
    ],
)
def test_a_bad_setting_is_refused_by_name(param: str, values: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as caught:
        GatewaySettings(**({"endpoint": (URL,)} | values))

    assert caught.value.param == param


def test_tokenizers_are_given_by_model_or_for_all() -> None:
    assert tokenizer_paths(("/a", "demo=/b")) == {None: Path("/a"), "demo": Path("/b")}


@pytest.mark.parametrize(
    ("url", "host_header", "prefix"),
    [
        ("http://a:1", b"a:1", b""),
        ("http://a/", b"a:80", b""),
        ("https://a/v1", b"a:443", b""),
        ("http://[::1]:5/team/v1/", b"[::1]:5", b"/team"),
    ],
)
def test_an_address_is_read_from_its_url(url: str, host_header: bytes, prefix: bytes) -> None:
    address = parse_address(url)

    assert (address.host_header, address.prefix) == (host_header, prefix)

"""Settings of remote tokenizers: AIBrix's table with its defaults, and what is refused."""

import dataclasses

import pytest

from headrace.errors import SettingsError
from headrace.tokenization.remote.endpoints import StaticEndpoints, base_url
from headrace.tokenization.remote.settings import RemotePoolSettings, RemoteTokenizerSettings


def test_the_defaults_are_those_of_aibrix() -> None:
    pool, remote = RemotePoolSettings(), RemoteTokenizerSettings()
    assert pool.enabled is False
    assert pool.endpoint_template == "http://%s:8000"
    assert (pool.health_period_s, pool.idle_ttl_s, pool.max_tokenizers) == (30, 300, 100)
    assert remote.request_timeout_s == 10


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        *[
            (RemotePoolSettings, name, 0)
            for name in (
                "health_period_s",
                "health_timeout_s",
                "idle_ttl_s",
                "max_tokenizers",
                "breaker_failures",
                "breaker_pause_s",
                "max_parity_checks",
            )
        ],
        (RemotePoolSettings, "health_period_s", -1),
        (RemotePoolSettings, "breaker_max_pause_s", 0.5),
        (RemotePoolSettings, "parity_share", 1.5),
        (RemotePoolSettings, "parity_share", -0.1),
        (RemotePoolSettings, "endpoint_template", "http://host:8000"),
        (RemotePoolSettings, "endpoint_template", "http://%s:%s"),
        *[
            (RemoteTokenizerSettings, name, 0)
            for name in (
                "request_timeout_s",
                "connect_timeout_s",
                "retry_base_s",
                "retry_max_s",
                "max_request_bytes",
                "max_response_bytes",
                "max_connections",
            )
        ],
        *[(RemoteTokenizerSettings, name, -1) for name in ("max_retries", "retry_after_max_s", "max_idle_connections")],
        (RemoteTokenizerSettings, "api_key", "two\nlines"),
        (RemoteTokenizerSettings, "tls_ca_file", "/no/such/file"),
        (RemoteTokenizerSettings, "tls_key_file", "key.pem"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(settings: type, name: str, value: object) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(**{name: value})
    assert refused.value.param == name
    assert name in refused.value.message


def test_the_api_key_is_not_shown() -> None:
    assert "secret" not in repr(RemoteTokenizerSettings(api_key="secret"))


def test_every_setting_is_documented() -> None:
    import ast
    import inspect

    from headrace.tokenization.remote import settings as remote_settings

    tree = ast.parse(inspect.getsource(remote_settings))
    for node in (item for item in tree.body if isinstance(item, ast.ClassDef)):
        body = [item for item in node.body if not isinstance(item, ast.FunctionDef)][1:]
        assert [isinstance(item, ast.AnnAssign) for item in body] == [True, False] * (len(body) // 2)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("engine-1.default.svc", "http://engine-1.default.svc:8000"),
        ("fd00::1", "http://[fd00::1]:8000"),
        ("[fd00::1]", "http://[fd00::1]:8000"),
        ("https://engine:8443/", "https://engine:8443"),
        ("http://[fd00::1]:9000/v1", "http://[fd00::1]:9000"),
        ("http://engine/prefix/v1/", "http://engine/prefix"),
    ],
)
def test_an_address_becomes_the_url_it_means(address: str, expected: str) -> None:
    """AIBrix knows neither ports, nor TLS, nor brackets around IPv6 addresses."""
    assert base_url(address, template="http://%s:8000") == expected


def test_the_template_may_say_scheme_port_and_prefix() -> None:
    assert base_url("host", template="https://%s:8443/engine") == "https://host:8443/engine"


@pytest.mark.parametrize(
    "address",
    ["", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://u:p@host", "http://h?q", "a b"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError) as refused:
        base_url(address, template="http://%s:8000")
    assert refused.value.param == "endpoint"


def test_static_endpoints_know_only_their_models() -> None:
    source = StaticEndpoints({"demo": ["one", "two"]})
    assert [endpoint.address for endpoint in source.endpoints("demo")] == ["one", "two"]
    assert list(source.endpoints("other")) == []
    assert dataclasses.astuple(source.endpoints("demo")[0]) == ("one", None, 0)

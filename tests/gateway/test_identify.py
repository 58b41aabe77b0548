import gzip
import json

import msgspec
import pytest

from headrace.errors import HeadraceError, InvalidRequestError, ModelNotFoundError
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call, identify
from headrace.gateway.routes import Route


def adapter_of(parent: str, *, name: str = "lora") -> dict[str, ServedModel]:
    base = ServedModel(card=ModelCard(id=parent, max_model_len=64), raw=msgspec.Raw(b"{}"))
    card = ModelCard(id=name, root="/adapters/lora", parent=parent)
    return {parent: base, name: ServedModel(card=card, raw=msgspec.Raw(b"{}"))}


def served(*names: str) -> dict[str, ServedModel]:
    return {name: ServedModel(card=ModelCard(id=name), raw=msgspec.Raw(b"{}")) for name in names}


def call_of(
    body: bytes,
    *names: str,
    path: bytes = b"/v1/chat/completions",
    method: str = "POST",
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Call:
    request = Request(method=method, target=path, headers=headers or [], is_http10=False, keep_alive=True, body=body)
    return identify(request, models=served(*names), request_id=b"1")


def test_fields_that_are_not_read_may_be_anything() -> None:
    call = call_of(b'{"model":"demo","logit_bias":{"5":[1]},"messages":17,"stream":true}', "demo", "other")

    assert (call.route, call.model, call.fields.stream) == (Route.CHAT, "demo", True)


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'{"model":null}', b'{"a":{}}', b'{"a":1 } \n', b'{"a":"}"}'])
def test_a_missing_model_becomes_the_only_one(body: bytes) -> None:
    call = call_of(body, "demo")

    assert json.loads(b"".join(call.body)) == json.loads(body) | {"model": "demo"}


def test_a_byte_order_mark_is_left_out_of_what_the_endpoint_gets() -> None:
    call = call_of(b"\xef\xbb\xbf" + '{"model":"demo","user":"\u00e9"}'.encode(), "demo")

    assert json.loads(b"".join(call.body).decode()) == {"model": "demo", "user": "\u00e9"}
    assert call.request.body == b"".join(call.body)


@pytest.mark.parametrize("limit", [b"16", b"16.0", b'"16"'])
def test_a_whole_number_may_be_written_as_most_engines_take_it(limit: bytes) -> None:
    body = b'{"model":"demo","max_tokens":' + limit + b"}"

    call = call_of(body, "demo")

    assert (call.limits_asked, call.body) == ([16], (body,))


@pytest.mark.parametrize(
    ("body", "headers", "why"),
    [
        (gzip.compress(b"{}"), [(b"content-encoding", b"gzip")], "Content-Encoding is 'gzip'"),
        (gzip.compress(b"{}"), [], "compressed"),
        ("{}".encode("utf-16"), [], "UTF-16"),
        (b"", [], "empty"),
        (b'{"model":"\\ud83d"}', [], r"\\ud83d is half"),
        (b'{"messages":[{"content":"\\\\ a\\ud83d"}]}', [], r"\\ud83d is half"),
        (b'{"messages":[{"content":"\\\\ud83d \\ud83d\\ude00"}]', [], "truncated"),
    ],
)
def test_a_body_that_is_no_json_is_refused_with_what_is_wrong_with_it(
    body: bytes, headers: list[tuple[bytes, bytes]], why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        call_of(body, "demo", headers=headers)


def test_a_body_with_a_model_goes_on_unchanged() -> None:
    body = b'{ "model" : "demo" }'

    assert call_of(body, "demo").body == (body,)


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (b'{"model":"nope"}', ModelNotFoundError, "model"),
        (b"{}", InvalidRequestError, "model"),
        (b'{"model":5}', InvalidRequestError, "model"),
        (b'{"model":"a","max_tokens":"x"}', InvalidRequestError, "max_tokens"),
        (b"[]", InvalidRequestError, None),
        (b"", InvalidRequestError, None),
        (b"{", InvalidRequestError, None),
        (b'{"model":"\xff"}', InvalidRequestError, None),
        (b'{"model":"a","user":"\xff"}', InvalidRequestError, None),
        (b'{"model":"a","messages":[{"content":"\xff"}]}', InvalidRequestError, None),
        (b'{"model":"a","foo":' + b"[" * 20_000 + b"]" * 20_000 + b"}", InvalidRequestError, None),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body: bytes, kind: type[HeadraceError], param: str | None) -> None:
    with pytest.raises(kind) as caught:
        call_of(body, "a", "b")

    assert caught.value.param == param


@pytest.mark.parametrize(("path", "method", "status"), [(b"/v2/x", "POST", 404), (b"/tokenize", "GET", 405)])
def test_an_unknown_route_and_a_wrong_method_are_told_apart(path: bytes, method: str, status: int) -> None:
    with pytest.raises(HeadraceError) as caught:
        call_of(b"{}", "demo", path=path, method=method)

    assert caught.value.status_hint == status


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (Route.CHAT, [2, 1]),
        (Route.COMPLETIONS, [1]),
        (Route.RESPONSES, [3]),
        (Route.MESSAGES, [1]),
        (Route.EMBEDDINGS, []),
        (Route.RERANK, []),
    ],
)
def test_a_completion_is_limited_by_what_engines_read_on_its_route(route: Route, expected: list[int]) -> None:
    body = b'{"model":"a","max_tokens":1,"max_completion_tokens":2,"max_output_tokens":3}'

    assert call_of(body, "a", path=route.value.encode()).limits_asked == expected


def test_without_a_limit_none_is_asked() -> None:
    assert call_of(b'{"model":"a","max_tokens":null}', "a").limits_asked == []


def test_what_generate_has_within_its_sampling_params_is_read() -> None:
    body = b'{"model":"a","token_ids":[1],"sampling_params":{"max_tokens":5,"n":2,"stop":[1]}}'

    call = call_of(body, "a", path=b"/inference/v1/generate")

    assert (call.limits_asked, call.fields.n, call.prompt_param) == ([5], 2, "token_ids")


def test_sampling_params_of_a_wrong_type_are_named() -> None:
    body = b'{"model":"a","token_ids":[1],"sampling_params":{"max_tokens":"x"}}'

    with pytest.raises(InvalidRequestError) as caught:
        call_of(body, "a", path=b"/inference/v1/generate")

    assert caught.value.param == "sampling_params.max_tokens"


@pytest.mark.parametrize("route", Route)
def test_every_route_knows_the_only_model(route: Route) -> None:
    call = call_of(b"{}", "demo", path=route.value.encode())

    assert (call.route, call.model) == (route, "demo")


def test_an_adapter_that_tells_no_context_has_that_of_its_model() -> None:
    request = Request(
        method="POST", target=b"/v1/completions", headers=[], is_http10=False, keep_alive=True, body=b'{"model":"lora"}'
    )

    call = identify(request, models=adapter_of("base"), request_id=b"1")

    assert (call.model, call.card.parent, call.card.max_model_len) == ("lora", "base", 64)


@pytest.mark.parametrize("body", [b"{}", b'{"model":"three"}'])
@pytest.mark.parametrize(("allowed", "told"), [({"two"}, "'two'."), (set(), "none that this API key may use.")])
def test_errors_name_only_models_that_the_key_may_use(body: bytes, allowed: set[str], told: str) -> None:
    request = Request(method="POST", target=b"/v1/completions", headers=[], is_http10=False, keep_alive=True, body=body)

    with pytest.raises(HeadraceError) as caught:
        identify(request, models=served("one", "two"), request_id=b"1", may_use=allowed.__contains__)

    assert "one'" not in caught.value.message
    assert caught.value.message.endswith(told)

import json

import msgspec
import pytest

from headrace.errors import HeadraceError, InvalidRequestError, ModelNotFoundError
from headrace.gateway.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import Request
from headrace.gateway.identify import Call, Route, identify


def served(*names: str) -> dict[str, ServedModel]:
    return {name: ServedModel(card=ModelCard(id=name), raw=msgspec.Raw(b"{}")) for name in names}


def call_of(body: bytes, *names: str, path: bytes = b"/v1/chat/completions", method: str = "POST") -> Call:
    request = Request(method=method, target=path, headers=[], is_http10=False, keep_alive=True, body=body)
    return identify(request, models=served(*names), request_id=b"1")


def test_fields_that_are_not_read_may_be_anything() -> None:
    call = call_of(b'{"model":"demo","logit_bias":{"5":[1]},"messages":17,"stream":true}', "demo", "other")

    assert (call.route, call.model, call.fields.stream) == (Route.CHAT, "demo", True)


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'{"model":null}', b'{"a":{}}', b'{"a":1 } \n', b'{"a":"}"}'])
def test_a_missing_model_becomes_the_only_one(body: bytes) -> None:
    call = call_of(body, "demo")

    assert json.loads(b"".join(call.body)) == json.loads(body) | {"model": "demo"}


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


def test_the_newer_name_of_the_limit_goes_first() -> None:
    call = call_of(b'{"model":"a","max_tokens":5,"max_completion_tokens":9}', "a")

    assert call.fields.num_tokens_asked == 9

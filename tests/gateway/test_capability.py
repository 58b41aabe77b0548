import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.routes import Route
from headrace.gateway.token_in.capability import UNKNOWN, EngineKind, capability_of, engine_kind, read_version
from headrace.server.api_table import OPERATIONS
from headrace.server.openapi import openapi_document

IDS = {"type": "array", "items": {"type": "integer"}}
TEXT = {"type": "string"}


def document(*, prompt: object = TEXT, chat: dict[str, object] | None = None, paths: tuple[str, ...] = ()) -> bytes:
    """An OpenAPI document as FastAPI writes them, with references to components."""
    schemas = {
        "Completion": {"properties": {"prompt": prompt}},
        "Chat": {"properties": {"messages": {}} | (chat or {})},
    }
    bodies = {"/v1/completions": "Completion", "/v1/chat/completions": "Chat"}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "paths": {path: {"post": post(bodies.get(path))} for path in (*bodies, *paths)},
            "components": {"schemas": schemas},
        }
    ).encode()


def post(schema: str | None) -> dict[str, object]:
    reference = {"$ref": f"#/components/schemas/{schema}"} if schema else {}
    return {"requestBody": {"content": {"application/json": {"schema": reference}}}}


def test_our_own_server_takes_ids_on_both_routes() -> None:
    capability = capability_of("headrace", version="0.1.0", document=msgspec.json.encode(openapi_document(OPERATIONS)))

    assert (capability.engine, capability.version) == ("headrace", "0.1.0")
    assert (capability.takes_ids, capability.chat_ids_field) == (True, "prompt_token_ids")
    assert (capability.has_generate, capability.has_render, capability.has_tokenize) == (True, True, True)
    assert capability.takes_ids_on(Route.CHAT)
    assert capability.takes_ids_on(Route.COMPLETIONS)
    assert not capability.takes_ids_on(Route.EMBEDDINGS)


@pytest.mark.parametrize(
    ("prompt", "takes_ids"),
    [
        (TEXT, False),
        (IDS, True),
        ({"anyOf": [TEXT, {"type": "array", "items": TEXT}, IDS]}, True),
        ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, False),
        ({"oneOf": [TEXT, {"type": "array", "items": {"anyOf": [TEXT, {"type": "integer"}]}}]}, True),
        ({"type": "array", "items": True}, False),
        ({"$ref": "#/components/schemas/Nowhere"}, False),
        ({"type": ["string", "null"]}, False),
    ],
)
def test_whether_a_prompt_may_be_ids_is_read_from_its_schema(prompt: object, takes_ids: bool) -> None:
    assert capability_of("unknown", version=None, document=document(prompt=prompt)).takes_ids is takes_ids


@pytest.mark.parametrize(
    ("kind", "version", "chat", "expected"),
    [
        ("unknown", None, {"prompt_token_ids": IDS}, "prompt_token_ids"),
        ("sglang", None, {"input_ids": IDS}, "input_ids"),
        ("vllm", "0.32.0", {"kv_transfer_params": {}}, "kv_transfer_params"),
        ("vllm", "0.40.1rc2.dev3+g123", {"kv_transfer_params": {}}, "kv_transfer_params"),
        ("vllm", "1.0.0", {"kv_transfer_params": {}, "prompt_token_ids": IDS}, "prompt_token_ids"),
        ("vllm", "0.31.9", {"kv_transfer_params": {}}, None),
        ("vllm", None, {"kv_transfer_params": {}}, None),
        ("vllm", "dev", {"kv_transfer_params": {}}, None),
        ("unknown", "0.32.0", {"kv_transfer_params": {}}, None),
        ("headrace", "0.1", {}, None),
    ],
)
def test_where_a_chat_takes_ids(
    kind: EngineKind, version: str | None, chat: dict[str, object], expected: str | None
) -> None:
    assert capability_of(kind, version=version, document=document(chat=chat)).chat_ids_field == expected


@pytest.mark.parametrize(
    "unreadable", [None, b"", b"[]", b'{"paths": 3}', b'{"paths": {"/v1/completions": {"post": 3}}}']
)
def test_without_a_document_the_kind_decides(unreadable: bytes | None) -> None:
    vllm = capability_of("vllm", version="0.32.0", document=unreadable)
    assert (vllm.takes_ids, vllm.chat_ids_field) == (True, "kv_transfer_params")
    assert capability_of("unknown", version=None, document=unreadable) == UNKNOWN


def test_routes_are_those_that_the_document_has() -> None:
    found = capability_of("vllm", version=None, document=document(paths=("/inference/v1/generate", "/tokenize")))

    assert (found.has_generate, found.has_render, found.has_tokenize) == (True, False, True)


@given(st.binary(max_size=40) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode))
def test_no_document_does_harm(data: bytes) -> None:
    assert capability_of("unknown", version=None, document=data).engine == "unknown"


@pytest.mark.parametrize(
    ("told", "owned_by", "expected"),
    [
        ("vllm", "headrace", "vllm"),
        (None, "vllm", "vllm"),
        (None, "SGLang", "sglang"),
        (None, "headrace", "headrace"),
        ("something", "headrace", "headrace"),
        (None, "openai", "unknown"),
        (None, None, "unknown"),
    ],
)
def test_the_kind_of_an_engine(told: str | None, owned_by: str | None, expected: str) -> None:
    assert engine_kind(told=told, owned_by=owned_by) == expected


@pytest.mark.parametrize(("body", "version"), [(b'{"version":"0.32.0"}', "0.32.0"), (b"{}", None), (b"no", None)])
def test_the_version_of_an_engine(body: bytes, version: str | None) -> None:
    assert read_version(body) == version

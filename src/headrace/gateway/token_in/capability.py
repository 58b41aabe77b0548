"""What an endpoint takes beyond text, read from what it says of itself. Pure; who asks it is `capability_probe`.

Theory. An engine's OpenAPI document names the fields of its requests, so nothing has to be tried. Two things it cannot
tell: vLLM's chat takes ids within `kv_transfer_params`, which is a free mapping there, so its version decides; and an
engine may keep its document to itself, then its kind decides. What is known of neither takes text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from headrace.gateway.routes import Route
from headrace.gateway.unreadable import UNREADABLE

EngineKind: TypeAlias = Literal["headrace", "vllm", "sglang", "unknown"]
ChatIdsField: TypeAlias = Literal["prompt_token_ids", "input_ids", "kv_transfer_params"]
"""The field of a chat request that takes the finished prompt; the last holds it as `prompt_token_ids` within."""

_KINDS: Mapping[str, EngineKind] = {"headrace": "headrace", "vllm": "vllm", "sglang": "sglang"}
_VLLM_WITH_CHAT_IDS = (0, 32)
_NUMBERS = re.compile(r"(\d+)\.(\d+)")
_MAX_DEPTH = 8
_COMPONENTS = "#/components/schemas/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What one endpoint takes."""

    engine: EngineKind = "unknown"
    version: str | None = None
    takes_ids: bool = False
    """The `prompt` of /v1/completions may be token ids."""
    chat_ids_field: ChatIdsField | None = None
    """Where /v1/chat/completions takes the prompt's token ids; None where it does not."""
    has_generate: bool = False
    """There is /inference/v1/generate."""
    has_render: bool = False
    """There are routes that only render and tokenize."""
    has_tokenize: bool = False
    routes: frozenset[Route] | None = None
    """Those that its document lists; None where it shows none that could be an engine's."""

    def lacks(self, route: Route) -> bool:
        """Whether it surely has no such route. Chats and completions are what an endpoint is for."""
        return self.routes is not None and not route.traits.is_everywhere and route not in self.routes

    def takes_ids_on(self, route: Route) -> bool:
        """Whether a request to `route` may bring its prompt as token ids."""
        if route is Route.COMPLETIONS:
            return self.takes_ids
        return route is Route.CHAT and self.chat_ids_field is not None


UNKNOWN = Capability()
"""Of an endpoint that has not been asked yet, or says nothing: it gets text."""


class _Answer(msgspec.Struct, frozen=True):
    version: str | None = None


class _Schema(msgspec.Struct, frozen=True):
    ref: str | None = msgspec.field(name="$ref", default=None)
    type: str | list[str] | None = None
    items: "_Schema | bool | None" = None
    any_of: list["_Schema"] = msgspec.field(name="anyOf", default_factory=list)
    one_of: list["_Schema"] = msgspec.field(name="oneOf", default_factory=list)
    properties: dict[str, "_Schema | bool"] = {}


class _MediaType(msgspec.Struct, frozen=True):
    schema: _Schema = _Schema()


class _Body(msgspec.Struct, frozen=True):
    content: dict[str, _MediaType] = {}


class _Operation(msgspec.Struct, frozen=True):
    request_body: _Body = msgspec.field(name="requestBody", default=_Body())


class _Path(msgspec.Struct, frozen=True):
    post: _Operation | None = None


class _Components(msgspec.Struct, frozen=True):
    schemas: dict[str, _Schema] = {}


class _Document(msgspec.Struct, frozen=True):
    paths: dict[str, _Path] = {}
    components: _Components = _Components()


_DOCUMENT = msgspec.json.Decoder(_Document)
_VERSION = msgspec.json.Decoder(_Answer)


def engine_kind(*, told: str | None, owned_by: str | None) -> EngineKind:
    """The kind of an engine: as its source `told`, else by who owns its models."""
    for text in (told, owned_by):
        found = next((kind for word, kind in _KINDS.items() if text and word in text.lower()), None)
        if found is not None:
            return found
    return "unknown"


def read_version(body: bytes) -> str | None:
    """The version that a JSON answer of /version names."""
    try:
        return _VERSION.decode(body).version
    except UNREADABLE:
        return None


def capability_of(kind: EngineKind, *, version: str | None, document: bytes | None) -> Capability:
    """What an engine takes. `document` is its OpenAPI document, where it shows one; one that cannot be read counts as
    none. Takes some milliseconds for the document of a large server."""
    if document is not None:
        try:
            return _as_documented(_DOCUMENT.decode(document), kind, version)
        except UNREADABLE:
            pass
    is_known = kind != "unknown"
    return Capability(
        engine=kind,
        version=version,
        takes_ids=is_known,
        chat_ids_field=_undocumented_field(kind, version),
        has_tokenize=is_known,
    )


def _as_documented(document: _Document, kind: EngineKind, version: str | None) -> Capability:
    prompt = _request_fields(document, Route.COMPLETIONS.value).get("prompt")
    chat = _request_fields(document, Route.CHAT.value)
    field: ChatIdsField | None = None
    if "prompt_token_ids" in chat:
        field = "prompt_token_ids"
    elif "input_ids" in chat:
        field = "input_ids"
    elif "kv_transfer_params" in chat:
        field = _undocumented_field(kind, version)
    return Capability(
        engine=kind,
        version=version,
        takes_ids=prompt is not None and _takes_ids(prompt, document, depth=_MAX_DEPTH),
        chat_ids_field=field,
        has_generate=_has_post(document, Route.GENERATE.value),
        has_render=_has_post(document, Route.CHAT_RENDER.value),
        has_tokenize=_has_post(document, Route.TOKENIZE.value),
        routes=_routes_of(document),
    )


def _undocumented_field(kind: EngineKind, version: str | None) -> ChatIdsField | None:
    """What no document can say: `kv_transfer_params` is any mapping, and vLLM reads ids in it since 0.32."""
    numbers = _NUMBERS.match(version or "")
    if kind != "vllm" or numbers is None:
        return "prompt_token_ids" if kind == "headrace" else None
    return "kv_transfer_params" if (int(numbers[1]), int(numbers[2])) >= _VLLM_WITH_CHAT_IDS else None


def _routes_of(document: _Document) -> frozenset[Route] | None:
    """None for a document that is not an engine's: whoever answers every path with some JSON has no routes to tell."""
    routes = frozenset(route for route in Route if _has_post(document, route.value))
    return routes if any(route.traits.is_everywhere for route in routes) else None


def _has_post(document: _Document, path: str) -> bool:
    return path in document.paths and document.paths[path].post is not None


def _request_fields(document: _Document, path: str) -> Mapping[str, _Schema | bool]:
    operation = document.paths[path].post if path in document.paths else None
    if operation is None or "application/json" not in operation.request_body.content:
        return {}
    return _resolved(operation.request_body.content["application/json"].schema, document).properties


def _resolved(schema: _Schema, document: _Document) -> _Schema:
    if schema.ref is None:
        return schema
    return document.components.schemas.get(schema.ref.removeprefix(_COMPONENTS), _Schema())


def _takes_ids(schema: _Schema | bool, document: _Document, *, depth: int) -> bool:
    """Whether an array of integers fits."""
    if isinstance(schema, bool) or depth == 0:
        return False
    schema = _resolved(schema, document)
    if schema.type == "array" and schema.items is not None:
        return _takes_integers(schema.items, document, depth=depth - 1)
    return any(_takes_ids(one, document, depth=depth - 1) for one in (*schema.any_of, *schema.one_of))


def _takes_integers(schema: _Schema | bool, document: _Document, *, depth: int) -> bool:
    if isinstance(schema, bool) or depth == 0:
        return False
    schema = _resolved(schema, document)
    if schema.type == "integer":
        return True
    return any(_takes_integers(one, document, depth=depth - 1) for one in (*schema.any_of, *schema.one_of))

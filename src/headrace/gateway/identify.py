"""What a request asks for: its route, its model, and the fields that are read here. The rest of the body stays bytes,
and is the engine's to judge. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from headrace.errors import InvalidRequestError, ModelNotFoundError
from headrace.gateway.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import MethodNotAllowedError, Request, RouteNotFoundError

FieldsT = TypeVar("FieldsT")


class Route(Enum):
    """The paths that endpoints answer."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"


_ROUTES = {route.value: route for route in Route}


class CallFields(msgspec.Struct, frozen=True):
    """The fields that are read. What holds text stays undecoded until somebody counts its tokens."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream_options: msgspec.Raw = msgspec.Raw(b"")
    truncate_prompt_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"")
    user: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: msgspec.Raw = msgspec.Raw(b"")

    @property
    def num_tokens_asked(self) -> int | None:
        """The completion's limit; the newer name of the field goes before the older."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


_DECODER = msgspec.json.Decoder(CallFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that can be sent to an endpoint."""

    request: Request
    request_id: bytes
    route: Route
    card: ModelCard
    fields: CallFields
    body: tuple[bytes, ...]
    """What goes to the endpoint: the body as it came, or with the model's name put in."""
    hides_usage: bool = False
    """The gateway asked for a stream's usage, the client did not."""

    @property
    def model(self) -> str:
        return self.card.id

    @property
    def prompt_param(self) -> str:
        """The field that holds the prompt, as errors name it."""
        return "messages" if self.route is Route.CHAT else "prompt"


def identify(request: Request, *, models: Mapping[str, ServedModel], request_id: bytes) -> Call:
    """The call that `request` makes.

    Raises RouteNotFoundError, MethodNotAllowedError, InvalidRequestError for a body that is no JSON object of the right
    types, and ModelNotFoundError. `models` must not be empty.
    """
    route = _ROUTES.get(request.path)
    if route is None:
        raise RouteNotFoundError(f"There is no {request.method} {request.path} here.")
    if request.method != "POST":
        raise MethodNotAllowedError(f"{request.path} takes POST, not {request.method}.", allow="POST")
    fields = _read_fields(request.body)
    if fields.model is not None:
        return Call(
            request=request,
            request_id=request_id,
            route=route,
            card=_known_model(fields.model, models).card,
            fields=fields,
            body=(request.body,),
        )
    if len(models) != 1:
        raise InvalidRequestError(f"model is missing; give one of {_names(models)}.", param="model")
    (served,) = models.values()
    return Call(
        request=request,
        request_id=request_id,
        route=route,
        card=served.card,
        fields=fields,
        body=_with_model(request.body, served.card.id),
    )


def _known_model(name: str, models: Mapping[str, ServedModel]) -> ServedModel:
    served = models.get(name)
    if served is None:
        message = f"The model {name!r} does not exist here; there is {_names(models)}."
        raise ModelNotFoundError(message, param="model")
    return served


def _names(models: Mapping[str, ServedModel]) -> str:
    first = sorted(models)[:10]
    more = f" and {len(models) - len(first)} more" if len(models) > len(first) else ""
    return ", ".join(repr(name) for name in first) + more


def _read_fields(body: bytes) -> CallFields:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        param = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else None
        raise InvalidRequestError(f"The body does not fit: {text}.", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The body is not JSON: {error}.") from error


def _with_model(body: bytes, model: str) -> tuple[bytes, ...]:
    """`body`, a JSON object without a model (or with null), with the model's name as its last member, which counts."""
    end = body.rindex(b"}")
    is_empty = body[:end].rstrip().endswith(b"{") and body.lstrip()[1:].lstrip() == body[end:]
    separator = b"" if is_empty else b","
    return body[:end], separator + b'"model":' + msgspec.json.encode(model) + body[end:]

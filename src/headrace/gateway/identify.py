"""What a request asks for: its route, its model, and the fields that are read here. The rest of the body stays bytes,
and is the engine's to judge. Pure."""

import codecs
from collections.abc import Callable, Mapping

import msgspec

from headrace.errors import InvalidRequestError, ModelNotFoundError
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.message import MethodNotAllowedError, Request, RouteNotFoundError
from headrace.gateway.routes import ROUTES, Route
from headrace.openai.malformed import why_malformed


class CallFields(msgspec.Struct, frozen=True):
    """The fields that are read. What holds text stays undecoded until somebody counts its tokens."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    stream_options: msgspec.Raw = msgspec.Raw(b"")
    truncate_prompt_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    token_ids: msgspec.Raw = msgspec.Raw(b"")
    sampling_params: msgspec.Raw = msgspec.Raw(b"")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")
    input_ids: msgspec.Raw = msgspec.Raw(b"")
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: msgspec.Raw = msgspec.Raw(b"")
    user: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: msgspec.Raw = msgspec.Raw(b"")


class _SamplingParams(msgspec.Struct, frozen=True):
    """What /inference/v1/generate has one level deeper than others."""

    max_tokens: int | None = None
    n: int | None = None


_DECODER = msgspec.json.Decoder(CallFields)
_LENIENT_DECODER = msgspec.json.Decoder(CallFields, strict=False)
"""Takes `16.0` and `"16"` for 16, as most engines do, and leaves it to the others to refuse them."""
_SAMPLING_PARAMS = msgspec.json.Decoder(_SamplingParams, strict=False)


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
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
        return self.route.traits.prompt_param

    @property
    def limits_asked(self) -> list[int]:
        """What limits the completion, none or more: where a chat has both names, engines differ in which one counts."""
        fields = self.fields
        return [limit for name in self.route.traits.limit_fields if (limit := getattr(fields, name)) is not None]


def identify(
    request: Request,
    *,
    models: Mapping[str, ServedModel],
    request_id: bytes,
    may_use: Callable[[str], bool] = lambda _: True,
) -> Call:
    """The call that `request` makes.

    Raises RouteNotFoundError, MethodNotAllowedError, InvalidRequestError for a body that is no JSON object of the right
    types, and ModelNotFoundError; errors name only models that `may_use` lets through. `models` must not be empty.
    """
    route = ROUTES.get(request.path)
    if route is None:
        raise RouteNotFoundError(f"There is no {request.method} {request.path} here.")
    if request.method != "POST":
        raise MethodNotAllowedError(f"{request.path} takes POST, not {request.method}.", allow="POST")
    if request.body.startswith(codecs.BOM_UTF8):
        request.body = request.body.removeprefix(codecs.BOM_UTF8)  # RFC 8259 section 8.1 lets a reader ignore it
    fields = _read_fields(request)
    if route is Route.GENERATE:
        fields = _with_sampling_params(fields)
    if fields.model is not None:
        return Call(
            request=request,
            request_id=request_id,
            route=route,
            card=_card_of(_known_model(fields.model, models, may_use), models),
            fields=fields,
            body=(request.body,),
        )
    if len(models) != 1:
        raise InvalidRequestError(f"model is missing; give one of {_names(models, may_use)}.", param="model")
    (served,) = models.values()
    return Call(
        request=request,
        request_id=request_id,
        route=route,
        card=_card_of(served, models),
        fields=fields,
        body=_with_model(request.body, served.card.id),
    )


def _known_model(name: str, models: Mapping[str, ServedModel], may_use: Callable[[str], bool]) -> ServedModel:
    served = models.get(name)
    if served is None:
        message = f"The model {name!r} does not exist here; there is {_names(models, may_use)}."
        raise ModelNotFoundError(message, param="model")
    return served


def _card_of(served: ServedModel, models: Mapping[str, ServedModel]) -> ModelCard:
    """The model's card. That of an adapter may not tell the context, which is that of the model it adapts."""
    card = served.card
    if card.parent is None or card.max_model_len is not None or (parent := models.get(card.parent)) is None:
        return card
    return msgspec.structs.replace(card, max_model_len=parent.card.max_model_len)


def _names(models: Mapping[str, ServedModel], may_use: Callable[[str], bool]) -> str:
    names = sorted(filter(may_use, models))
    first = names[:10]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return ", ".join(repr(name) for name in first) + more or "none that this API key may use"


def _read_fields(request: Request) -> CallFields:
    """What stays undecoded is known to be UTF-8 from here on."""
    body = request.body
    try:
        if not body.isascii():
            body.decode()
        return _DECODER.decode(body)
    except msgspec.ValidationError:
        return _read_leniently(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_json(request, error) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply; no engine reads so much of it.") from error


def _read_leniently(body: bytes) -> CallFields:
    try:
        return _LENIENT_DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _misfit(error) from error


def _no_json(request: Request, error: msgspec.DecodeError | UnicodeDecodeError) -> InvalidRequestError:
    encoding = request.header(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        name = encoding.decode("latin-1")
        return InvalidRequestError(
            f"The body's Content-Encoding is {name!r:.80}, which is not supported; send it uncompressed.",
            code="unsupported_media_type",
        )
    return InvalidRequestError(f"The body is not JSON: {why_malformed(error, request.body)}.")


def _misfit(error: msgspec.ValidationError, *, within: str = "") -> InvalidRequestError:
    text = str(error)
    path = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
    param = ".".join(name for name in (within, path) if name) or None
    return InvalidRequestError(f"The body does not fit: {text}.", param=param)


def _with_sampling_params(fields: CallFields) -> CallFields:
    try:
        params = _SAMPLING_PARAMS.decode(fields.sampling_params) if fields.sampling_params else _SamplingParams()
    except msgspec.ValidationError as error:
        raise _misfit(error, within="sampling_params") from error
    return msgspec.structs.replace(fields, max_tokens=params.max_tokens, n=params.n)


def _with_model(body: bytes, model: str) -> tuple[bytes, ...]:
    """`body`, a JSON object without a model (or with null), with the model's name as its last member, which counts."""
    end = body.rindex(b"}")
    is_empty = body[:end].rstrip().endswith(b"{") and body.lstrip()[1:].lstrip() == body[end:]
    separator = b"" if is_empty else b","
    return body[:end], separator + b'"model":' + msgspec.json.encode(model) + body[end:]

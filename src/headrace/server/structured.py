"""The several ways in which a request says what its answer must look like, as the engine's one. Pure."""

import contextlib
import re
from collections.abc import Iterator

import msgspec

from headrace.engine.structured_outputs import StructuredOutputsParams
from headrace.errors import InvalidRequestError
from headrace.openai.schema.chat import ChatCompletionRequest
from headrace.openai.schema.generation import GenerationRequest
from headrace.openai.schema.structured import ResponseFormat, StructuredOutputs
from headrace.openai.tools import grammar

SCHEMA_PARAM = "response_format.json_schema.schema"
"""Where OpenAI's own requests have it."""

_OLDER_NAMES = ("json", "regex", "choice", "grammar")

_ENGINE_FIELD = re.compile(r"\bstructured_outputs\.(?P<kind>\w+)")


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """None when the request asks for nothing. Raises InvalidRequestError when it asks twice, or for what is no form."""
    ways = {
        "response_format": _of_format(request.response_format),
        "structured_outputs": _of_fields(request.structured_outputs),
        "guided_json and its like": _of_older_names(request),
    }
    given = {name: params for name, params in ways.items() if params is not None}
    if len(given) > 1:
        message = f"{' and '.join(given)} exclude each other; give one of them"
        raise InvalidRequestError(message, param=next(iter(given)).partition(" ")[0])
    return next(iter(given.values()), None)


@contextlib.contextmanager
def naming_fields_of(request: GenerationRequest, *, schema_param: str) -> Iterator[None]:
    """What the engine raises of `structured_outputs` names the field of the request that it was made of instead;
    `schema_param` is the one that holds a JSON schema."""
    try:
        yield
    except InvalidRequestError as error:
        named = _ENGINE_FIELD.search(error.message)
        if named is None:
            raise
        field = _origin(request, kind=named["kind"], schema_param=schema_param)
        message = error.message[named.start() :].replace(named[0], field)
        raise type(error)(message, param=field, code=error.code) from error


def _origin(request: GenerationRequest, *, kind: str, schema_param: str) -> str:
    if request.structured_outputs is not None:
        return f"structured_outputs.{kind}"
    if kind == "grammar" and isinstance(request, ChatCompletionRequest) and request.tools:
        return "tools"
    if request.response_format is not None:
        return schema_param if kind == "json" else "response_format"
    return f"guided_{kind}"


def _of_format(response_format: ResponseFormat | None) -> StructuredOutputsParams | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return StructuredOutputsParams(json_object=True, whitespace_pattern=grammar.ANSWER_WHITESPACE)
    wanted = response_format.json_schema
    if wanted is None or wanted.schema is None:
        message = 'response_format of type "json_schema" needs json_schema.schema'
        raise InvalidRequestError(message, param="response_format.json_schema")
    schema = msgspec.json.encode(wanted.schema).decode()
    return StructuredOutputsParams(json=schema, whitespace_pattern=grammar.ANSWER_WHITESPACE)


def _of_fields(fields: StructuredOutputs | None) -> StructuredOutputsParams | None:
    if fields is None:
        return None
    return StructuredOutputsParams(
        **{name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    )


def _of_older_names(request: GenerationRequest) -> StructuredOutputsParams | None:
    given = {name: value for name in _OLDER_NAMES if (value := getattr(request, f"guided_{name}")) is not None}
    if request.guided_whitespace_pattern is not None:
        given["whitespace_pattern"] = request.guided_whitespace_pattern
    return StructuredOutputsParams(**given) if given else None

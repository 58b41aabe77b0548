"""The OpenAPI 3.2 document: the table of routes, with the JSON schemas that msgspec writes of their types. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from headrace._version import __version__
from headrace.openai.anthropic_errors import AnthropicErrorBody
from headrace.openai.decode import Neutral
from headrace.openai.errors import ErrorBody
from headrace.server.api_table import Operation

_Json: TypeAlias = dict[str, object]

_JSON = "application/json"
_ERRORS = {
    400: "A field has a wrong type or value, is missing, or asks for what is not built",
    401: "The API key is missing or wrong",
    403: "The operator has not opened this route",
    404: "There is no such model",
    408: "The request did not arrive in time",
    413: "The request is too large",
    500: "The server failed",
    503: "The server is overloaded, or its engine is dead",
}
_OF_EVERY_ROUTE = (500, 503)
_OF_BODIES = (400, 404, 408, 413)


def openapi_document(operations: Sequence[Operation]) -> _Json:
    """As JSON values, ready to be encoded."""
    types = [kind for each in operations for kind in (each.request, each.answer, each.event) if kind is not None]
    unique = list(dict.fromkeys([*types, ErrorBody, AnthropicErrorBody]))
    written, components = msgspec.json.schema_components(
        unique, schema_hook=_schema_of_anything, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(unique, written, strict=True))
    for operation in operations:
        if operation.request is not None and operation.unbuilt:
            name = str(schemas[operation.request]["$ref"]).rpartition("/")[2]
            _add_unbuilt(components[name], operation.unbuilt)
    paths: dict[str, _Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.2.0",
        "info": {"title": "Headrace", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "Asked for where the server has API keys"},
                "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same"},
                "admin": {"type": "http", "scheme": "bearer", "description": "The operator's key"},
            },
        },
    }


def _schema_of_anything(kind: type) -> _Json:
    """`object` is what our types call any JSON value."""
    if kind is object:
        return {"description": "Any JSON value"}
    raise NotImplementedError(f"{kind} has no JSON schema")


def _operation(operation: Operation, schemas: Mapping[object, object]) -> _Json:
    described: _Json = {
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_').replace('.', '_')}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": _security(operation),
        "responses": {"200": _answer(operation, schemas), **_errors(operation, schemas)},
    }
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.request is not None:
        described["requestBody"] = {
            "required": not operation.is_request_optional,
            "content": {_JSON: {"schema": schemas[operation.request]}},
        }
    return described


def _security(operation: Operation) -> list[_Json]:
    """Alternatives; the empty one is a server without keys."""
    if operation.access == "open":
        return []
    if operation.access == "admin":
        return [{"admin": []}]
    return [{"key": []}, {"anthropic_key": []}, {}]


def _answer(operation: Operation, schemas: Mapping[object, object]) -> _Json:
    if operation.answer is None:
        return {"description": "Done"}
    schema = schemas[operation.answer]
    content: _Json = {"text/plain" if operation.text_answer else _JSON: {"schema": schema}}
    if operation.event is not None:
        content["text/event-stream"] = {"itemSchema": _event(operation, schemas)}
    return {"description": "The answer", "content": content}


def _event(operation: Operation, schemas: Mapping[object, object]) -> _Json:
    """One server-sent event of a stream: what it may hold, an error among it, and OpenAI's mark of the end."""
    value = {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": {"anyOf": [schemas[operation.event], _error(operation, schemas)]},
    }
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, value]}},
        "required": ["data"],
    }


def _error(operation: Operation, schemas: Mapping[object, object]) -> object:
    return schemas[AnthropicErrorBody if operation.is_anthropic else ErrorBody]


def _errors(operation: Operation, schemas: Mapping[object, object]) -> _Json:
    statuses = set(_OF_EVERY_ROUTE)
    if operation.has_body:
        statuses.update(_OF_BODIES)
    if operation.query:
        statuses.add(400)
    if operation.access != "open":
        statuses.add(401)
    if operation.access == "admin":
        statuses.update((400, 403))
    if "{" in operation.path:
        statuses.add(404)
    content = {_JSON: {"schema": _error(operation, schemas)}}
    return {str(status): {"description": _ERRORS[status], "content": content} for status in sorted(statuses)}


def _parameters(operation: Operation) -> list[_Json]:
    parameters: list[_Json] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in operation.path.split("/")
        if part.startswith("{")
    ]
    parameters += [{"name": query.name, "in": "query", "schema": dict(query.schema)} for query in operation.query]
    return parameters


def _add_unbuilt(schema: _Json, unbuilt: Mapping[str, Neutral]) -> None:
    """Fields that are refused by name are told of, with the values that are let through."""
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for name, neutral in unbuilt.items():
        properties.setdefault(name, _unbuilt(neutral))


def _unbuilt(neutral: Neutral) -> _Json:
    return {"enum": [None, *neutral], "description": "Not built by this version; other values are refused."}

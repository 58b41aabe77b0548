"""The OpenAPI document tells of every route, and tells the truth."""

from typing import Any

import msgspec
import pytest

from headrace.openai import unbuilt
from headrace.openai.schema.completions import CompletionRequest
from headrace.server.api_table import OPERATIONS
from headrace.server.app import build_routes, open_serving
from headrace.server.openapi import openapi_document
from headrace.server.settings import ServerSettings
from headrace.testing.fake_engine import FakeEngine


def references(value: object) -> set[str]:
    """Every `$ref` within."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


async def test_every_route_is_in_the_table_and_nothing_else(engine: FakeEngine) -> None:
    routes = build_routes(await open_serving(engine, ServerSettings()))
    served = {
        (method.lower(), route.path.replace(":path", ""))
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert served == {(operation.method, operation.path) for operation in OPERATIONS}


def test_every_reference_leads_somewhere() -> None:
    document = msgspec.json.decode(msgspec.json.encode(openapi_document(OPERATIONS)))
    for reference in references(document):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        assert found


def test_operation_ids_are_unique() -> None:
    paths: Any = openapi_document(OPERATIONS)["paths"]
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(ids)) == len(ids) == len(OPERATIONS)


def test_a_requests_schema_has_its_fields_and_those_that_are_refused_by_name() -> None:
    components: Any = openapi_document(OPERATIONS)["components"]
    properties = components["schemas"]["CompletionRequest"]["properties"]
    assert set(properties) == {field.name for field in msgspec.structs.fields(CompletionRequest)} | set(
        unbuilt.COMPLETIONS
    )
    assert properties["suffix"]["enum"] == [None, ""]


def test_each_route_says_whose_key_it_wants() -> None:
    paths: Any = openapi_document(OPERATIONS)["paths"]
    assert paths["/health"]["get"]["security"] == []
    assert {} in paths["/v1/models"]["get"]["security"]
    assert paths["/sleep"]["post"]["security"] == [{"admin": []}]


def test_anthropics_routes_answer_with_its_error_object() -> None:
    paths: Any = openapi_document(OPERATIONS)["paths"]
    for path, name in (("/v1/messages", "AnthropicErrorBody"), ("/v1/completions", "ErrorBody")):
        content = paths[path]["post"]["responses"]["400"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.integration
async def test_it_is_served(server: Any) -> None:
    response = await server.http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == msgspec.json.decode(msgspec.json.encode(openapi_document(OPERATIONS)))

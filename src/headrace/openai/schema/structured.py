"""What an answer is to look like: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from typing import Literal

import msgspec


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`schema` is followed to the letter, whatever `strict` says."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, object] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """One of the first five."""

    json: str | dict[str, object] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

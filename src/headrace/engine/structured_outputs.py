"""What the text of an answer must look like: one JSON schema, regular expression, choice or grammar. Knows no tokens.

Whether the grammar library accepts it is found out in the core, where it is compiled.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedError

_MAX_CHARS = 256 * 1024
"""Of one schema, expression or grammar, and of all choices together: compiling takes time and memory in proportion."""

_MAX_CHOICES = 4096

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

_UNBUILT = {
    "structural_tag": "use grammar, or json",
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
}


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of `json`, `regex`, `choice`, `grammar` and `json_object` says what the answer must be.

    Raises InvalidRequestError, naming the field, when none or several do, or the one is of a wrong form.
    """

    json: str | Mapping[str, object] | None = None
    """A JSON schema, as JSON text or as what that decodes to."""
    regex: str | None = None
    """The whole answer matches it. Without look-around and back-references."""
    choice: Sequence[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A context-free grammar in Lark's or GBNF's notation."""
    json_object: bool | None = None
    """True: any JSON object."""
    structural_tag: str | None = None
    """Not built."""
    disable_any_whitespace: bool = False
    """JSON without white space between its tokens."""
    disable_additional_properties: bool = False
    """Not built."""
    whitespace_pattern: str | None = None
    """A regular expression for the white space between tokens of JSON."""

    def __post_init__(self) -> None:
        for name, instead in _UNBUILT.items():
            if getattr(self, name) is not (None if name == "structural_tag" else False):
                raise UnsupportedError(
                    f"structured_outputs.{name} is not supported by this version; {instead}", param=_param(name)
                )
        self._check_flags()
        given = [name for name in _KINDS if _asks(getattr(self, name))]
        if len(given) != 1:
            named = ", ".join(given) if given else "none"
            message = (
                f"structured_outputs needs exactly one of json, regex, choice, grammar and json_object, got {named}"
            )
            raise InvalidRequestError(message, param="structured_outputs")
        self._check_texts()
        if self.json is not None:
            msgspec.structs.force_setattr(self, "json", _schema_text(self.json))
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", _checked_choice(self.choice))

    @property
    def kind(self) -> str:
        """The name of the one field that is given."""
        return next(name for name in _KINDS if _asks(getattr(self, name)))

    @property
    def param(self) -> str:
        """That field, as errors name it."""
        return _param(self.kind)

    def _check_flags(self) -> None:
        for name in ("json_object", "disable_any_whitespace"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name != "json_object"):
                message = f"structured_outputs.{name} must be True or False, got {value!r:.80}"
                raise InvalidRequestError(message, param=_param(name))

    def _check_texts(self) -> None:
        for name in ("regex", "grammar", "whitespace_pattern"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or len(text) > _MAX_CHARS):
                message = f"structured_outputs.{name} must be a string of at most {_MAX_CHARS} characters"
                raise InvalidRequestError(message, param=_param(name))


GuidedDecodingParams: TypeAlias = StructuredOutputsParams
"""vLLM's older name."""


def _asks(value: object) -> bool:
    """Empty texts and lists ask for nothing; an empty schema asks for JSON of any kind."""
    return bool(value) or isinstance(value, Mapping)


def _param(name: str) -> str:
    return f"structured_outputs.{name}"


def _schema_text(schema: str | Mapping[str, object]) -> str:
    """The schema as JSON text. Raises InvalidRequestError for what is no JSON object."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequestError(f"structured_outputs.json is not JSON: {error}", param=_param("json")) from error
    if not isinstance(value, Mapping):
        raise InvalidRequestError("structured_outputs.json must be a JSON object", param=_param("json"))
    if len(text) > _MAX_CHARS:
        message = f"structured_outputs.json has {len(text)} characters; at most {_MAX_CHARS} are accepted"
        raise InvalidRequestError(message, param=_param("json"))
    return text


def _checked_choice(choice: Sequence[str]) -> tuple[str, ...]:
    is_list = isinstance(choice, Sequence) and not isinstance(choice, str)
    if not is_list or not all(isinstance(text, str) and text for text in choice):
        message = f"structured_outputs.choice must be a list of non-empty strings, got {choice!r:.80}"
        raise InvalidRequestError(message, param=_param("choice"))
    if len(choice) > _MAX_CHOICES or sum(map(len, choice)) > _MAX_CHARS:
        message = f"structured_outputs.choice holds more than {_MAX_CHOICES} texts or {_MAX_CHARS} characters"
        raise InvalidRequestError(message, param=_param("choice"))
    return tuple(choice)

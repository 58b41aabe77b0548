"""Reads request bodies: JSON into a typed request, or an InvalidRequestError that names the field.

A field of the API that is known and not built is refused by name when it asks for something; fields nobody knows are
skipped, as every server of this API does.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai.long_strings import Body, JsonBody
from headrace.openai.malformed import why_malformed

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

Neutral = Sequence[object]
"""The values of a field that ask for nothing; null is always one of them."""

_AT_PATH = re.compile(r"(?P<what>.*?) - at (?:`key` in )?`(?P<path>[^`]*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_MAX_VALUE_SHOWN = 60


class RequestDecoder(Generic[RequestT]):
    """Decodes bodies of one route. `unbuilt` maps each refused field to the values that are harmless.

    The refused fields are read in the same pass as the others, unparsed; a request without them pays nothing.
    """

    def __init__(self, request_type: type[RequestT], *, unbuilt: Mapping[str, Neutral]) -> None:
        self._unbuilt = dict(unbuilt)
        fields = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in unbuilt]
        wire_type = msgspec.defstruct(request_type.__name__, fields, bases=(request_type,), kw_only=True)
        self._decoder = msgspec.json.Decoder(wire_type)

    def decode(self, body: Body) -> RequestT:
        """Raises InvalidRequestError, and UnsupportedError (which is one) for a field that is not built."""
        text = (body.json if isinstance(body, JsonBody) else body).removeprefix(codecs.BOM_UTF8)
        try:
            if not text.isascii():
                text.decode()  # msgspec looks at no text of a field that it skips
            request = self._decoder.decode(text)
            self._refuse_unbuilt(request, body)
            if isinstance(body, JsonBody):
                body.restore(request)
        except msgspec.ValidationError as error:
            raise invalid_field(error, body=body) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise no_json(error, text) from error
        except RecursionError as error:
            raise InvalidRequestError("the body is nested too deeply") from error
        return cast("RequestT", request)

    def _refuse_unbuilt(self, request: msgspec.Struct, body: Body) -> None:
        for name, neutral in self._unbuilt.items():
            raw = getattr(request, name)
            if raw is msgspec.UNSET:
                continue
            value = msgspec.json.decode(raw)
            if value is not None and not _is_among(value, neutral):
                value = body.restore(value) if isinstance(body, JsonBody) else value
                raise UnsupportedError(
                    f"{name}={_shown(value)} is not supported by this version; leave the field out", param=name
                )


def no_json(error: msgspec.DecodeError | UnicodeDecodeError, body: bytes) -> InvalidRequestError:
    return InvalidRequestError(f"the body is not valid JSON: {why_malformed(error, body)}")


def invalid_field(error: msgspec.ValidationError, *, within: str = "", body: Body = b"") -> InvalidRequestError:
    """msgspec's error with its path as OpenAI's `param`: `$.messages[0].role` becomes `messages[0].role`.

    `within` is the path of the value that was decoded, when it is not the whole body; else `body` may be that, whose
    long strings the error then shows the beginning of.
    """
    text = str(error)
    path = within
    if located := _AT_PATH.fullmatch(text):
        text = located["what"]
        path += located["path"].removeprefix("$")
    if missing := _MISSING_FIELD.fullmatch(text):
        path += f".{missing['field']}"
        text = "the field is required"
    path = path.removeprefix(".")
    text = text.replace("`", "")
    text = body.unmarked(text) if isinstance(body, JsonBody) else text
    return InvalidRequestError(f"{path}: {text}" if path else f"the body: {text}", param=path or None)


def _is_among(value: object, neutral: Neutral) -> bool:
    # True == 1 in Python, but not in JSON; 1 and 1.0 are the same number in both.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_SHOWN else text[:_MAX_VALUE_SHOWN] + "..."

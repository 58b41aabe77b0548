"""The gateway's errors in the form that a route's clients expect: OpenAI's, and on /v1/messages Anthropic's. Pure."""

from headrace.errors import HeadraceError
from headrace.gateway.routes import is_anthropic
from headrace.openai.anthropic_errors import anthropic_error_body
from headrace.openai.errors import error_body
from headrace.openai.sse import encode_event


def error_answer(error: HeadraceError, *, path: str) -> bytes:
    """The JSON body of an answer."""
    return anthropic_error_body(error) if is_anthropic(path) else error_body(error)


def error_event(error: HeadraceError, *, path: str) -> bytes:
    """An event that ends a stream. Anthropic's clients go by its name."""
    return encode_event(error_answer(error, path=path), name="error" if is_anthropic(path) else None)

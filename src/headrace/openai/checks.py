"""What a request must be beyond its types: rules between fields, and the forms a prompt may have. Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai import unbuilt
from headrace.openai.schema.generation import GenerationRequest, StreamOptions
from headrace.openai.tools.request import check_calls


class Streamable(Protocol):
    """A request whose answer may be a stream."""

    @property
    def stream(self) -> bool | None: ...

    @property
    def stream_options(self) -> StreamOptions | None: ...


def check_stream_options(request: Streamable) -> None:
    """Raise when `stream_options` is given without a stream, or asks for what is not built."""
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise InvalidRequestError("stream_options is only allowed when stream is true", param="stream_options")
    if options.continuous_usage_stats:
        raise UnsupportedError(
            "stream_options.continuous_usage_stats is not supported; include_usage gives the usage at the end",
            param="stream_options.continuous_usage_stats",
        )


def wants_usage(request: Streamable) -> bool:
    """Whether a stream is to tell, at its end, what it took."""
    return bool(request.stream_options and request.stream_options.include_usage)


def check_logprobs(request: GenerationRequest, *, top_logprobs: int | None, wants_logprobs: bool) -> None:
    """Raise when likeliest tokens are asked for without log probabilities, or those of a prompt in a stream."""
    if top_logprobs and not wants_logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.logprob_token_ids and not wants_logprobs:
        raise InvalidRequestError("logprob_token_ids needs logprobs", param="logprob_token_ids")
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequestError("prompt_logprobs is only told when stream is false", param="prompt_logprobs")


def wants_generation_prompt(*, add_generation_prompt: bool | None, continue_final_message: bool | None) -> bool:
    """Whether the template ends with the assistant's turn opened: yes, unless the final message is to be continued.

    Raises when both are asked for.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidRequestError(
            "add_generation_prompt and continue_final_message exclude each other; set one of them to false",
            param="continue_final_message",
        )
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt


def check_messages(messages: Sequence[Mapping[str, object]]) -> None:
    """Raise when there is none, or one has a field that is not built, or a call of no function.

    Their shape otherwise is for the renderer to check.
    """
    if not messages:
        raise InvalidRequestError("messages must have at least one message", param="messages")
    for index, message in enumerate(messages):
        for name in unbuilt.MESSAGE:
            if message.get(name) is not None:
                raise UnsupportedError(
                    f"messages[{index}].{name} is not supported by this version; leave the field out",
                    param=f"messages[{index}].{name}",
                )
        check_calls(message.get("tool_calls"), at=f"messages[{index}].tool_calls")


def prompt_list(
    prompt: str | Sequence[str | int | list[int]], *, max_prompts: int, param: str = "prompt"
) -> list[str | list[int]]:
    """The prompts of a request, in order: a string or a list of token ids each. `param` is the field they came in.

    Raises InvalidRequestError for no prompt, an empty list of ids, too many prompts or a mixture of the forms.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError(f"{param} must not be an empty list", param=param)
    if token_ids := [item for item in prompt if isinstance(item, int)]:
        _refuse_mixture(prompt, num_alike=len(token_ids), param=param)
        return [token_ids]
    if len(prompt) > max_prompts:
        raise InvalidRequestError(f"{param} has {len(prompt)} prompts, more than {max_prompts}", param=param)
    _refuse_mixture(prompt, num_alike=sum(isinstance(item, type(prompt[0])) for item in prompt), param=param)
    for index, item in enumerate(prompt):
        if item == []:
            raise InvalidRequestError(f"{param}[{index}] is an empty list of token ids", param=f"{param}[{index}]")
    return [item for item in prompt if not isinstance(item, int)]


def _refuse_mixture(prompt: Sequence[str | int | list[int]], *, num_alike: int, param: str) -> None:
    if num_alike != len(prompt):
        raise InvalidRequestError(
            f"{param} must be a string, strings, token ids or lists of token ids, not a mixture of them",
            param=param,
        )

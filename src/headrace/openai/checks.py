"""What a request must be beyond its types: rules between fields, and the forms a prompt may have. Pure."""

from collections.abc import Mapping, Sequence

from headrace.errors import InvalidRequestError, UnsupportedError
from headrace.openai import unbuilt
from headrace.openai.schema.generation import GenerationRequest


def check_stream_options(request: GenerationRequest) -> None:
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
    """Raise when there is none, or one has a field that is not built. Their shape is for the renderer to check."""
    if not messages:
        raise InvalidRequestError("messages must have at least one message", param="messages")
    for index, message in enumerate(messages):
        for name in unbuilt.MESSAGE:
            if message.get(name) is not None:
                raise UnsupportedError(
                    f"messages[{index}].{name} is not supported by this version; leave the field out",
                    param=f"messages[{index}].{name}",
                )


def prompt_list(prompt: str | Sequence[str | int | list[int]], *, max_prompts: int) -> list[str | list[int]]:
    """The prompts of a completion request, in order: a string or a list of token ids each.

    Raises InvalidRequestError for no prompt, an empty list of ids, too many prompts or a mixture of the forms.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt must not be an empty list", param="prompt")
    if token_ids := [item for item in prompt if isinstance(item, int)]:
        _refuse_mixture(prompt, num_alike=len(token_ids))
        return [token_ids]
    if len(prompt) > max_prompts:
        raise InvalidRequestError(f"prompt has {len(prompt)} prompts, more than {max_prompts}", param="prompt")
    _refuse_mixture(prompt, num_alike=sum(isinstance(item, type(prompt[0])) for item in prompt))
    for index, item in enumerate(prompt):
        if item == []:
            raise InvalidRequestError(f"prompt[{index}] is an empty list of token ids", param=f"prompt[{index}]")
    return [item for item in prompt if not isinstance(item, int)]


def _refuse_mixture(prompt: Sequence[str | int | list[int]], *, num_alike: int) -> None:
    if num_alike != len(prompt):
        raise InvalidRequestError(
            "prompt must be a string, strings, token ids or lists of token ids, not a mixture of them",
            param="prompt",
        )

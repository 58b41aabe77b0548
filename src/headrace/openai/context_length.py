"""Whether a request fits its model's context, said in OpenAI's words; for server and gateway alike. Pure.

Engines differ in whether a prompt that fills the context exactly may pass, so only what fits no engine is refused here.
"""

from headrace.errors import ContextLengthError


def check_context_length(
    *, max_model_len: int | None, num_prompt_tokens: int | None, num_tokens_asked: int | None, param: str
) -> None:
    """Raise ContextLengthError, in OpenAI's words, when prompt and completion together are over `max_model_len`.

    Does nothing when one of the first two numbers is not known.
    """
    if max_model_len is None or num_prompt_tokens is None:
        return
    num_asked = max(0, num_tokens_asked or 0)
    if num_prompt_tokens + num_asked <= max_model_len:
        return
    limit = f"This model's maximum context length is {max_model_len} tokens."
    if num_asked:
        request = (
            f"However, you requested {num_prompt_tokens + num_asked} tokens "
            f"({num_prompt_tokens} in the {param}, {num_asked} in the completion). "
            f"Please reduce the length of the {param} or completion."
        )
    else:
        request = (
            f"However, your {param} resulted in {num_prompt_tokens} tokens. Please reduce the length of the {param}."
        )
    raise ContextLengthError(f"{limit} {request}", param=param)

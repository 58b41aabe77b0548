"""Refuses text that is not valid Unicode, at the one place where every encoder can reach it."""

from headrace.errors import InvalidRequestError


def refuse_lone_surrogates(text: str) -> None:
    """Raise InvalidRequestError if `text` is not valid Unicode: no tokenizer has ids for half a surrogate pair."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at position {error.start}; "
            "send valid Unicode",
            param="prompt",
        ) from error

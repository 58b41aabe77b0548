"""The key that the gateway shows an endpoint. Pure."""

import re

from headrace.errors import SettingsError

_VISIBLE = re.compile(r"[\x21-\x7e]{1,4096}")


def can_be_sent(key: str) -> bool:
    """Whether a header can carry it."""
    return _VISIBLE.fullmatch(key) is not None


def check_key(key: str, *, param: str) -> str:
    """`key`, if a header can carry it. Raises SettingsError, which does not show it."""
    if not can_be_sent(key):
        message = f"{param}: a key is empty, has blanks or characters that no HTTP header can carry, or is too long"
        raise SettingsError(message, param=param)
    return key


def bearer(key: str | None) -> bytes | None:
    """The value of the `Authorization` field."""
    return None if key is None else b"Bearer " + key.encode("ascii")

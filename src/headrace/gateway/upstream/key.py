"""The key that the gateway shows an endpoint. Pure."""

import re
from dataclasses import dataclass, field

from headrace.errors import SettingsError
from headrace.gateway.admission.keys import without_keys
from headrace.gateway.http.head_facts import Headers

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


@dataclass(frozen=True, slots=True)
class Bearer:
    """A key as requests bring it: called with header fields, it puts itself in place of whatever key they hold."""

    value: bytes = field(repr=False)
    """Of the `Authorization` field."""

    def __call__(self, headers: Headers) -> Headers:
        return [*without_keys(headers), (b"authorization", self.value)]


def bearer(key: str | None) -> Bearer | None:
    """`key` as it is sent."""
    return None if key is None else Bearer(b"Bearer " + key.encode("ascii"))

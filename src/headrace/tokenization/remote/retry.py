"""When a failed request to an endpoint is tried again, and how long before that. Pure.

Pauses have full jitter: uniformly random below a bound that doubles, so that clients which failed together do not come
back together. An endpoint's Retry-After takes the place of a shorter pause (it is not added to it), up to a cap. There
is no pause before another endpoint is asked. A pause that would not end before the deadline is not begun.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from headrace.tokenization.remote.settings import RemoteTokenizerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """See the module. `random` gives numbers from 0 to 1, 1 excluded."""

    max_retries: int
    base_s: float
    max_s: float
    retry_after_max_s: float
    random: Callable[[], float]

    @classmethod
    def of(cls, settings: RemoteTokenizerSettings, *, random: Callable[[], float]) -> "RetryPolicy":
        """The policy that `settings` describe."""
        return cls(
            max_retries=settings.max_retries,
            base_s=settings.retry_base_s,
            max_s=settings.retry_max_s,
            retry_after_max_s=settings.retry_after_max_s,
            random=random,
        )

    def pause_s(self, *, num_failures: int, retry_after_s: float | None, time_left_s: float) -> float | None:
        """How long to wait after the failure of this number, from 1; None: do not try again."""
        if num_failures > self.max_retries:
            return None
        doubled_s: float = self.base_s * 2.0 ** min(num_failures - 1, 60)
        pause_s = self.random() * min(self.max_s, doubled_s)
        if retry_after_s is not None:
            pause_s = max(pause_s, min(retry_after_s, self.retry_after_max_s))
        return pause_s if pause_s < time_left_s else None

    def pause_before_another_s(self, *, num_failures: int, time_left_s: float) -> float | None:
        """The same where the next attempt goes to an endpoint that has not failed yet: no pause, or None."""
        return 0.0 if num_failures <= self.max_retries and time_left_s > 0 else None


def read_retry_after(value: str | None, *, now_unix_s: float) -> float | None:
    """Seconds of a Retry-After header, which gives seconds or a date; None for none and for what is neither."""
    if value is None:
        return None
    text = value.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now_unix_s)

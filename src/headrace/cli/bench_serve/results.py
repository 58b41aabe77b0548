"""How one request went. Pure."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestResult:
    """One request, filled in while its answer comes. Times are seconds, moments on one monotonic clock."""

    sent_s: float
    late_s: float = 0.0
    """How much later than planned the generator sent it; a busy generator measures itself."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    """Gaps between two chunks with text."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    endpoint: str | None = None
    """That a gateway of Headrace's chose."""
    error: str | None = None

    def note_text(self, now: float) -> None:
        """A chunk with text came."""
        if self.last_token_s is None:
            self.first_token_s = now
        else:
            self.itls_s.append(now - self.last_token_s)
        self.last_token_s = now

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2el_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Per output token after the first; None where there is no second."""
        if self.first_token_s is None or self.last_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)

    def keeps(self, limits_ms: dict[str, float]) -> bool:
        """Whether it answered well, within every limit."""
        if self.error is not None:
            return False
        times = {"ttft": self.ttft_s, "tpot": self.tpot_s or 0.0, "e2el": self.e2el_s}
        return all((times[name] or 0.0) * 1000 <= limit for name, limit in limits_ms.items())

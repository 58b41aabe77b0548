"""A bound on how many requests are under way. Pure."""

from types import TracebackType
from typing import Self

from headrace.errors import OverloadedError


class RequestSlots:
    """`with slots:` takes a place, or raises OverloadedError with a Retry-After when all are taken."""

    def __init__(self, *, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_taken = 0
        self.num_refused = 0

    def __enter__(self) -> Self:
        if self.num_taken >= self.num_slots:
            self.num_refused += 1
            message = f"{self.num_slots} requests are under way, which is the limit; try again later."
            raise OverloadedError(message, retry_after_s=1.0)
        self.num_taken += 1
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.num_taken -= 1

    def __repr__(self) -> str:
        return f"RequestSlots({self.num_taken} of {self.num_slots} taken)"

"""Where a request stands. The values are strings, so that they can be logged and sent as they are."""

from enum import StrEnum


class RequestStatus(StrEnum):
    """The first two are of open requests, each of the others is for good."""

    WAITING = "waiting"
    """Being tokenized, or queued, or put back for want of blocks."""
    RUNNING = "running"
    """In the batch that is being computed."""
    COMPLETED = "completed"
    """It has its whole answer."""
    CANCELLED = "cancelled"
    """Somebody aborted it."""
    FAILED = "failed"
    """It was refused, or could not be computed; awaiting its result raises why."""

    @property
    def is_final(self) -> bool:
        return self not in (RequestStatus.WAITING, RequestStatus.RUNNING)

"""What makes a gateway one worker of several."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """A worker shares its port with the others, and instead of an admin port it has a socket for its supervisor."""

    number: int
    """From 0."""
    socket: str
    """Path of the Unix socket. Who can reach it needs no key, so its directory belongs to the supervisor alone."""

"""What the load generator is told, and what it tells in the end; both are JSON on its pipes. Requests are in a file."""

from typing import Literal

import msgspec


class Template(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request: `head`, then words, then `tail`. All words have the same length, and are one token each, so that
    requests that nobody has seen before differ in nothing that counts."""

    head: bytes
    tail: bytes
    answer: bytes
    """The body that must come back."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to send."""

    words: list[bytes]
    num_words: int
    """How many stand between `head` and `tail`."""
    chats: list[list[Template]]
    """Each is sent request by request over one connection; its words are the same in all of them."""
    is_new_each_time: bool = True
    """Whether a chat that is sent again gets other words."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    kind: Literal["closed", "open", "streams"] = "closed"
    """`closed`: each connection sends its next request when it has its answer; `open`: at a given rate."""
    port: int = 0
    work: str = ""
    """Path of the Work."""
    first_chat: int = 0
    """Number of the first chat, for the choice of words: what was sent before is not sent again."""
    num_connections: int = 32
    warm_up_s: float = 0.5
    measured_s: float = 3.0
    rate: float = 0.0
    num_events: int = 0
    """Of each stream."""
    pids: list[int] = msgspec.field(default_factory=list)
    """Processes whose processor time is counted."""
    is_exact: bool = True
    """Whether answers must be equal byte by byte; some peers write them anew."""
    mark: str = ""
    """What must be in an answer that was written anew."""
    counted: str = ""
    """What is counted in such answers."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    highest: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a job."""

    num_done: int
    num_chats: int
    """Begun so far, `first_chat` included."""
    measured_s: float
    cpu_s: float
    """Of the processes that were named."""
    own_cpu_s: float
    num_counted: int = 0
    times: Times | None = None
    """Of all requests; of streams, from the sending of an event to its arrival."""
    later_times: Times | None = None
    """Of requests that continue a chat; of streams, between two events."""
    error: str | None = None
    """The first answer that was not what it should be."""

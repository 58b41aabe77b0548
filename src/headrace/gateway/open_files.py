"""The system's limit on open files, which connections are: raised as far as a process may, and said where it is low."""

import logging
import resource

_LOG = logging.getLogger(__name__)
_NUM_OTHERS = 256


def allow_connections(*, num_clients: int, num_upstream: int) -> int:
    """Raise this process's limit to what so many connections take, or as far as it goes; its children inherit it.
    Returns the limit."""
    wanted = num_clients + num_upstream + _NUM_OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _LOG.warning(
            "at most %d files can be open, which connections are; max_connections may take %d: raise `ulimit -n`",
            allowed,
            wanted,
        )
    return max(soft, allowed)

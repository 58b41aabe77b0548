"""Cuts a stream of server-sent events only between events. Pure.

The gateway may have to end a stream with an event of its own, when the endpoint dies. After half an event that would be
read as one broken event; so the beginning of an event waits here for its end. That costs nothing where endpoints send
whole events, as they do.
"""

_MAX_HELD_BYTES = 64 * 1024
_BOUNDARIES = (b"\n\n", b"\r\n\r\n", b"\r\r")


class EventBoundary:
    """Gives back whole events of what is pushed and holds the rest, up to 64 KiB; a longer event goes on in pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.is_mid_event = False
        """Whether a piece of an event was given out whose end was not."""

    def push(self, data: bytes) -> bytes:
        """What can be handed on now: whole events, or nothing."""
        if not self._held and data.endswith(_BOUNDARIES):
            self.is_mid_event = False
            return data
        search_from = max(0, len(self._held) - 3)
        self._held += data
        end = self._last_boundary(search_from)
        if end:
            self.is_mid_event = False
        elif len(self._held) > _MAX_HELD_BYTES:
            end = len(self._held)
            self.is_mid_event = True
        whole = bytes(self._held[:end])
        del self._held[:end]
        return whole

    @property
    def is_between_events(self) -> bool:
        """Whether all events that have begun were given out whole."""
        return not self._held and not self.is_mid_event

    def take_rest(self) -> bytes:
        """What was held: the beginning of an event, or what follows the last one."""
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _last_boundary(self, search_from: int) -> int:
        """Index behind the last boundary in what is held, 0 if there is none."""
        found = [
            index + len(boundary) for boundary in _BOUNDARIES if (index := self._held.rfind(boundary, search_from)) >= 0
        ]
        return max(found, default=0)

    def __repr__(self) -> str:
        return f"EventBoundary(num_held_bytes={len(self._held)})"

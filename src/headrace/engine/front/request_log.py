"""One line in the log when a request arrives and one when it ends; the prompt itself only at DEBUG."""

import logging

from headrace.engine.front.input_processor import PreparedPrompt
from headrace.engine.front.live_request import LiveRequest

_LOG = logging.getLogger("headrace.engine.requests")


class RequestLog:
    """Writes nothing when it is off. `max_chars` cuts a prompt's text; None leaves it whole."""

    def __init__(self, *, is_on: bool, max_chars: int | None) -> None:
        self._is_on = is_on
        self._max_chars = max_chars

    def received(self, request_id: str, prompt: PreparedPrompt) -> None:
        if self._is_on and _LOG.isEnabledFor(logging.INFO):
            _LOG.info("received", extra={"request_id": request_id, "prompt_tokens": len(prompt.token_ids)})
            if prompt.text is not None:
                _LOG.debug("prompt of %s: %r", request_id, prompt.text[: self._max_chars])

    def ended(self, request: LiveRequest) -> None:
        if self._is_on and _LOG.isEnabledFor(logging.INFO):
            reason = request.finish_reason or ("error" if request.is_finished else "left")
            _LOG.info(
                "ended",
                extra={"request_id": request.request_id, "reason": reason, "tokens": request.num_tokens},
            )

"""The encoder of each model that the service serves: registered, compared with its reference, warm in every thread.

How a text finds its way to an encoder is not known here.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from headrace.aio.bridge import run_in_loop
from headrace.errors import ModelNotFoundError
from headrace.tokenization.admission import Admission, HasShortcuts, admit
from headrace.tokenization.lanes import Lane
from headrace.tokenization.model_encoder import ModelEncoder
from headrace.tokenization.settings import TokenizationSettings
from headrace.tokenization.tokenizer import Tokenizer
from headrace.tokenization.warm_up import WarmUp

_WARM_UP_TIMEOUT_S = 2.0


class ServedModels:
    """By name. Use it from one event loop, or from none."""

    def __init__(self, settings: TokenizationSettings, *, lanes: Sequence[Lane], upkeep: Lane) -> None:
        """`lanes` encode and are warmed; comparisons run in `upkeep`."""
        self._settings = settings
        self._lanes = lanes
        self._upkeep = upkeep
        self._encoders: dict[str, ModelEncoder] = {}
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._encoders)

    def __repr__(self) -> str:
        return f"ServedModels({', '.join(sorted(self._encoders)) or 'none'})"

    def close(self) -> None:
        """Give comparisons that run up."""
        self._is_closing = True

    def encoder(self, model: str) -> ModelEncoder:
        """Raises ModelNotFoundError."""
        try:
            return self._encoders[model]
        except KeyError:
            known = ", ".join(sorted(self._encoders)) or "none"
            message = f"the model {model!r} does not exist; models here: {known}"
            raise ModelNotFoundError(message, param="model") from None

    def register(self, model: str, tokenizer: Tokenizer) -> None:
        """See `TokenizationService.register`."""
        for lane in self._lanes:
            lane.warm_up(partial(tokenizer.encode_batch, ["warm-up"], add_special_tokens=False))
        encoder = self._encoders[model] = ModelEncoder(tokenizer)
        if isinstance(tokenizer, HasShortcuts) and (self._settings.encoder != "reference" or self._settings.uses_cuts):
            encoder.is_decided.clear()
            self._upkeep.warm_up(partial(self._admit, encoder, _running_loop()))

    def _admit(self, encoder: ModelEncoder, loop: asyncio.AbstractEventLoop | None) -> None:
        """In the upkeep thread: find out which shortcuts `encoder` may take, and let it take them."""
        admission = Admission.refused("the comparison failed")
        try:
            admission = admit(
                encoder.reference,
                choice=self._settings.encoder,
                uses_cuts=self._settings.uses_cuts,
                should_stop=lambda: self._is_closing,
            )
            if admission.encoder is not None and not self._is_closing:
                self._warm_up_lanes(admission.encoder)
        finally:
            _call_in(loop, _begin_with, encoder, admission)

    def _warm_up_lanes(self, encoder: Tokenizer) -> None:
        warm_up = WarmUp(encoder)
        num_threads = sum(lane.warm_up(warm_up) for lane in self._lanes)
        warm_up.wait(num_threads=num_threads, timeout_s=_WARM_UP_TIMEOUT_S, should_stop=lambda: self._is_closing)


def _begin_with(encoder: ModelEncoder, admission: Admission) -> None:
    """In the event loop's thread, which encodes too: its first call comes now, not with the first request."""
    try:
        if admission.encoder is not None:
            admission.encoder.encode_batch(["warm-up"], add_special_tokens=False)
    finally:
        encoder.admit(admission)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _call_in(loop: asyncio.AbstractEventLoop | None, func: Callable[..., None], *args: object) -> None:
    """In the loop if there is one that is not closed, else here."""
    try:
        if loop is not None:
            run_in_loop(loop, func, *args)
            return
    except RuntimeError:
        pass
    func(*args)

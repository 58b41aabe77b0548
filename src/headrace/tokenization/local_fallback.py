"""The guarded local fallback: encoding a short text on the event loop itself, when nothing else has room for it.

`LocalGuard` decides and is pure. It allows what is estimated to fit the loop's budget, and one text for each turn of
the loop: work on a loop never overlaps, so a count of texts "running at once" would guard nothing.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import SettingsError
from headrace.tokenization.lanes import Finished
from headrace.tokenization.tokenizer import TokenIds, Tokenizer
from headrace.units import Seconds

_UNKNOWN_S_PER_BYTE = 1e-6
"""1 MB/s: what is assumed before anything was measured; slower than any encoder on any text that was tried."""

_HOSTILE_FACTOR = 16.0
"""Text without words (one long word, white space only, no spaces at all) may take this much longer per byte."""

_WINDOW_CHARS = 512
_MIN_MEASURED_BYTES = 256
"""Shorter texts measure the call rather than the text."""
_RISE = 0.5
_FALL = 0.05
"""Weight of a new measurement that is slower, or faster, than the estimate: caution comes quickly and goes slowly."""
_MAX_TOKENIZERS = 256


@dataclass(frozen=True, kw_only=True)
class LocalFallbackSettings:
    """How much of the event loop's time one text may take."""

    budget_s: Seconds = 0.001
    """Texts that are estimated to take longer are never encoded on the event loop; 0 switches the fallback off."""

    safety_factor: float = 2.0
    """The estimate is multiplied by this."""

    max_per_turn: int = 1
    """Texts that may be encoded before the event loop has turned to others."""

    def __post_init__(self) -> None:
        if not self.budget_s >= 0:
            raise SettingsError(f"budget_s is {self.budget_s}; it must be 0 or more", param="budget_s")
        if not self.safety_factor >= 1:
            raise SettingsError(f"safety_factor is {self.safety_factor}; it must be 1 or more", param="safety_factor")
        if self.max_per_turn < 1:
            raise SettingsError(f"max_per_turn is {self.max_per_turn}; it must be 1 or more", param="max_per_turn")


@dataclass(frozen=True, slots=True)
class Declined:
    """The fallback does not encode the text. Nothing was done."""

    reason: Literal["off", "too_slow", "busy"]
    """`too_slow`: it would hold the loop beyond the budget; `busy`: the loop has to turn to others first."""
    estimated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFallbackStatistics:
    """What the fallback has done since it was made."""

    num_encoded: int
    num_declined_too_slow: int
    num_declined_busy: int
    num_overruns: int
    """Texts that took longer than the budget, against the estimate."""
    max_run_s: float


class SpeedEstimate:
    """What a tokenizer takes for a byte of text: a moving average that believes bad news at once. Pure."""

    __slots__ = ("_s_per_byte",)

    def __init__(self, *, s_per_byte: float = _UNKNOWN_S_PER_BYTE) -> None:
        self._s_per_byte = s_per_byte

    def observe(self, *, num_bytes: int, elapsed_s: float, is_wordy: bool = True) -> None:
        """Note a call for one text. One without words, being slow by nature, tells of the others only if very slow."""
        if num_bytes < _MIN_MEASURED_BYTES:
            return
        measured = elapsed_s / num_bytes / (1.0 if is_wordy else _HOSTILE_FACTOR)
        if not is_wordy and measured <= self._s_per_byte:
            return
        weight = _RISE if measured > self._s_per_byte else _FALL
        self._s_per_byte += weight * (measured - self._s_per_byte)

    def estimate_s(self, *, num_bytes: int, is_wordy: bool) -> float:
        return num_bytes * self._s_per_byte * (1.0 if is_wordy else _HOSTILE_FACTOR)

    def __repr__(self) -> str:
        return f"SpeedEstimate({1e-6 / self._s_per_byte:.3g} MB/s)"


class LocalGuard:
    """Decides whether a text may be encoded on the loop. Pure: it is told of calls and of the loop's turns."""

    def __init__(self, settings: LocalFallbackSettings) -> None:
        self._settings = settings
        self._num_this_turn = 0

    def decide(self, estimated_s: float) -> Declined | None:
        """None: it may be encoded now. `estimated_s` is without the safety factor."""
        if self._settings.budget_s == 0:
            return Declined("off", estimated_s)
        if estimated_s * self._settings.safety_factor > self._settings.budget_s:
            return Declined("too_slow", estimated_s)
        if self._num_this_turn >= self._settings.max_per_turn:
            return Declined("busy", estimated_s)
        return None

    def begin(self) -> None:
        """A text is encoded in this turn of the loop."""
        self._num_this_turn += 1

    def turn(self) -> None:
        """The loop has turned to others."""
        self._num_this_turn = 0


def is_wordy(text: str) -> bool:
    """Whether every stretch of 512 characters has a space and something else: what encoders are fast at.

    Costs a microsecond for some kilobytes.
    """
    stretches = (text[at : at + _WINDOW_CHARS] for at in range(0, len(text), _WINDOW_CHARS))
    return all((" " in stretch or len(stretch) < _WINDOW_CHARS) and not stretch.isspace() for stretch in stretches)


class LocalFallback:
    """Encodes short texts on the running event loop, or says why not. Belongs to one loop.

    Feed it what the lanes measure by `observe`, so that its estimate is good before it is needed.
    """

    def __init__(
        self, settings: LocalFallbackSettings | None = None, *, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._settings = settings or LocalFallbackSettings()
        self._guard = LocalGuard(self._settings)
        self._now_s = now_s
        self._speeds: OrderedDict[str, SpeedEstimate] = OrderedDict()
        self._num_encoded = 0
        self._num_declined = {"too_slow": 0, "busy": 0, "off": 0}
        self._num_overruns = 0
        self._max_run_s = 0.0

    def encode(
        self, tokenizer: Tokenizer, text: str, *, num_bytes: int, add_special_tokens: bool
    ) -> Finished[TokenIds] | Declined:
        """The ids of `text`, encoded before this returns, or why it was not. Raises what the tokenizer raises."""
        speed = self._speed_of(tokenizer.fingerprint)
        wordy = self._may_fit(speed, num_bytes) and is_wordy(text)
        declined = self._guard.decide(speed.estimate_s(num_bytes=num_bytes, is_wordy=wordy))
        if declined is not None:
            self._num_declined[declined.reason] += 1
            return declined
        self._guard.begin()
        asyncio.get_running_loop().call_soon(self._guard.turn)
        begun_s = self._now_s()
        try:
            (token_ids,) = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        finally:
            run_s = self._now_s() - begun_s
            self._note(speed, num_bytes=num_bytes, run_s=run_s, wordy=wordy)
        return Finished(token_ids, 0.0, run_s)

    def observe(self, tokenizer: Tokenizer, *, num_bytes: int, elapsed_s: float) -> None:
        """What a call for one ordinary text took elsewhere."""
        self._speed_of(tokenizer.fingerprint).observe(num_bytes=num_bytes, elapsed_s=elapsed_s)

    def statistics(self) -> LocalFallbackStatistics:
        return LocalFallbackStatistics(
            num_encoded=self._num_encoded,
            num_declined_too_slow=self._num_declined["too_slow"],
            num_declined_busy=self._num_declined["busy"],
            num_overruns=self._num_overruns,
            max_run_s=self._max_run_s,
        )

    def __repr__(self) -> str:
        return f"LocalFallback(budget_s={self._settings.budget_s:g}, num_encoded={self._num_encoded})"

    def _may_fit(self, speed: SpeedEstimate, num_bytes: int) -> bool:
        """Spares long texts the look at their words."""
        return speed.estimate_s(num_bytes=num_bytes, is_wordy=True) <= self._settings.budget_s

    def _note(self, speed: SpeedEstimate, *, num_bytes: int, run_s: float, wordy: bool) -> None:
        self._num_encoded += 1
        self._num_overruns += run_s > self._settings.budget_s
        self._max_run_s = max(self._max_run_s, run_s)
        speed.observe(num_bytes=num_bytes, elapsed_s=run_s, is_wordy=wordy)

    def _speed_of(self, fingerprint: str) -> SpeedEstimate:
        speed = self._speeds.get(fingerprint)
        if speed is None:
            speed = self._speeds[fingerprint] = SpeedEstimate()
            if len(self._speeds) > _MAX_TOKENIZERS:
                self._speeds.popitem(last=False)
        return speed

"""The settings of the tokenization service."""

from dataclasses import dataclass
from typing import Literal

from headrace.errors import SettingsError
from headrace.units import NumBytes, Seconds

_KIB = 1024
_MIB = 1024 * _KIB

_AT_LEAST_ONE = (
    "num_bulk_threads",
    "max_queued_jobs",
    "max_queued_bytes",
    "batch_max_bytes",
    "bulk_threshold",
    "ageing_bytes_per_s",
    "process_permits",
)
_AT_LEAST_ZERO = (
    "render_threshold",
    "cache_max_bytes",
    "cache_max_entries",
    "cache_max_text",
    "resume_max_text",
    "in_place_max_chars",
    "loop_budget_s",
    "verify_share",
    "saturation_bytes",
    "num_processes",
    "process_max_text",
    "local_fallback_budget_s",
)


@dataclass(frozen=True, kw_only=True)
class TokenizationSettings:
    """How much tokenization may use, and what it keeps."""

    num_threads: int | None = None
    """Threads that encode texts up to `bulk_threshold`. None: half the cores, at least one, at most four."""

    num_bulk_threads: int = 1
    """Threads that encode longer texts, so that these never hold up the others."""

    bulk_threshold: NumBytes = 64 * _KIB
    """Texts longer than this go to the bulk threads."""

    max_queued_jobs: int = 4096
    """Texts that may wait in each lane; more are refused with 503."""

    max_queued_bytes: NumBytes = 256 * _MIB
    """Bytes of text that may wait in each lane; more are refused with 503, a single longer text with 413."""

    batch_max_bytes: NumBytes = 16 * _KIB
    """A thread takes waiting texts up to this size in one call; bounds how long the first waits for the last."""

    ageing_bytes_per_s: NumBytes = 256 * _KIB
    """Short texts go first, but a text of this many bytes lets only those pass that come within a second after it."""

    render_threshold: NumBytes = 128 * _KIB
    """Chats with more characters than this are rendered in a thread, shorter ones in the event loop. A message counts
    as 1,024 characters, one of a tool as 9: templates take longer for those."""

    cache_max_bytes: NumBytes = 64 * _MIB
    """Memory of the cache of encoded texts, texts and ids both counted; 0 switches it off."""

    cache_max_entries: int = 1000
    """Texts in the cache; 0 switches it off."""

    cache_max_text: NumBytes = 64 * _KIB
    """Longer texts are not cached; 0 switches the cache off."""

    encoder: Literal["auto", "reference", "fastokens"] = "auto"
    """What encodes. `auto`: fastokens wherever it gave the ids of the reference in a comparison at load, else the
    reference. `fastokens`: the same, and loading a tokenizer fails when it did not. `reference`: always it."""

    uses_cuts: bool = True
    """Whether long texts are encoded in parts where the tokenizer's rules make that exact. Resuming needs it."""

    resume_max_text: NumBytes = 2 * _MIB
    """A text that begins like an earlier one of up to this size is encoded from where they part; 0 switches it off."""

    in_place_max_chars: int = 20_000
    """What is to be encoded of a text is encoded in the event loop up to this many characters, as far as
    `loop_budget_s` allows, where an accelerated encoder is faster than a thread that has to be woken; 0 switches it
    off."""

    loop_budget_s: Seconds = 0.001
    """Encoding in place may take this long in each round of the event loop; what does not fit waits for the next one,
    or goes to a thread where too much waits already."""

    verify_share: float = 0.01
    """Share of results that is compared with the reference in idle time, as far as that takes no more than this share
    of a core; a shortcut that was wrong is switched off."""

    saturation_bytes: NumBytes = 4 * _MIB
    """A lane in which more bytes wait is saturated: texts then go to a process or are encoded in place if they may, and
    callers that would rather not wait are told."""

    num_processes: int = 0
    """Tokenizer processes, which help out when the threads are saturated; each has its own copy of every tokenizer."""

    process_max_text: NumBytes = 32 * _KIB
    """Longer texts are never given to a process."""

    process_permits: int = 1
    """Texts that a process may have at once."""

    local_fallback_budget_s: Seconds = 0.001
    """When everything is saturated, a text that is estimated to take less is encoded in the event loop; 0: never."""

    offline: bool = False
    """Whether tokenizers named as on the Hugging Face hub are looked for in the local cache only."""

    close_timeout_s: Seconds = 5.0
    """How long closing waits for threads that are inside the tokenizer library."""

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            self._check("num_threads", at_least=1)
        for name in _AT_LEAST_ONE:
            self._check(name, at_least=1)
        for name in _AT_LEAST_ZERO:
            self._check(name, at_least=0)
        if not self.close_timeout_s > 0:
            raise SettingsError(
                f"close_timeout_s is {self.close_timeout_s}; it must be more than 0", param="close_timeout_s"
            )

        if self.verify_share > 1:
            raise SettingsError(f"verify_share is {self.verify_share}; it must be 1 or less", param="verify_share")
        if self.encoder not in {"auto", "reference", "fastokens"}:
            raise SettingsError(
                f"encoder is {self.encoder!r}; it must be auto, reference or fastokens", param="encoder"
            )

    def _check(self, name: str, *, at_least: int) -> None:
        if (value := getattr(self, name)) < at_least:
            raise SettingsError(f"{name} is {value}; it must be {at_least} or more", param=name)

    @property
    def is_resuming(self) -> bool:
        return self.uses_cuts and min(self.cache_max_bytes, self.cache_max_entries, self.resume_max_text) > 0

    @property
    def is_cache_on(self) -> bool:
        return min(self.cache_max_bytes, self.cache_max_entries, self.cache_max_text) > 0

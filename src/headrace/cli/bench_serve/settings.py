"""What `headrace bench serve` is asked for. Names and defaults are those of `vllm bench serve` where it has them."""

import math
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from headrace.errors import SettingsError
from headrace.units import Seconds

DatasetName = Literal["random", "sharegpt", "prefix_repetition", "mooncake"]
_NEEDS_PATH = ("mooncake",)
_METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """One run of the load generator."""

    base_url: str = "http://127.0.0.1:8000"
    """Server to load; its API begins at /v1."""
    backend: Literal["openai-chat", "openai"] = "openai-chat"
    """API to call: chat completions, or completions."""
    model: str | None = None
    """Model to ask for; without, the first that the server lists."""
    tokenizer: str | None = None
    """Directory or tokenizer.json to make prompts of exact lengths with; without, a word stands for a token."""
    api_key: str | None = None
    """Sent as bearer token."""
    header: tuple[str, ...] = ()
    """Header of every request, as NAME=VALUE."""
    extra_body: str | None = None
    """JSON object whose fields every request's body gets."""
    dataset_name: DatasetName = "random"
    """Workload: `random` lengths around a mean, `sharegpt` conversations (or lengths like theirs), `prefix_repetition`
    with prefixes that many share, `mooncake` traces with their times and shared blocks."""
    dataset_path: str | None = None
    """File of the dataset: a ShareGPT JSON, or a Mooncake trace."""
    num_prompts: int = 200
    """Requests to send."""
    request_rate: float = math.inf
    """Requests per second; inf sends all at once. A trace brings its own times unless this is given."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the times between requests: 1 is a Poisson process, less is burstier."""
    max_concurrency: int | None = None
    """Requests under way at a time at most; later ones wait, and their times run from when they are sent."""
    num_warmups: int = 1
    """Requests sent before, one after the other, and not counted."""
    seed: int = 0
    """Of prompts and times: the same seed is the same load."""
    random_input_len: int = 1024
    """Prompt tokens, in the mean."""
    random_output_len: int = 128
    """Output tokens, in the mean."""
    random_range_ratio: float = 0.0
    """Lengths are drawn evenly from (1 - ratio) to (1 + ratio) times the mean."""
    random_prefix_len: int = 0
    """Tokens that all prompts begin with, besides."""
    sharegpt_output_len: int | None = None
    """Output tokens of each request, in place of the conversation's."""
    prefix_repetition_prefix_len: int = 256
    """Tokens of each shared prefix."""
    prefix_repetition_suffix_len: int = 256
    """Tokens of each prompt's own end."""
    prefix_repetition_num_prefixes: int = 10
    """Different prefixes, taken in random order."""
    prefix_repetition_output_len: int = 128
    """Output tokens of each request."""
    trace_time_scale: float = 1.0
    """A trace's times are divided by this: 2 is twice as fast."""
    max_prompt_len: int | None = None
    """Longer prompts of a trace are cut to this many tokens."""
    max_output_len: int | None = None
    """No request asks for more output tokens than this."""
    ignore_eos: bool = False
    """Ask for exactly as many tokens as the workload says; vLLM's parameter, which not every server knows."""
    temperature: float | None = 0.0
    """Of sampling; none leaves it to the server."""
    percentile_metrics: str = "ttft,tpot,itl,e2el"
    """Which times are shown."""
    metric_percentiles: str = "50,90,99"
    """Which percentiles of them are shown."""
    goodput: tuple[str, ...] = ()
    """Limit that a good request keeps, as METRIC:MILLISECONDS with ttft, tpot or e2el; give several for all to hold."""
    request_timeout_s: Seconds = 600.0
    """Time for one whole request; then it failed."""
    ready_timeout_s: Seconds = 60.0
    """Time for the server to list its models before the run."""

    def __post_init__(self) -> None:
        if urlsplit(self.base_url).scheme not in {"http", "https"} or not urlsplit(self.base_url).netloc:
            raise SettingsError(f"base_url {self.base_url!r} is no http:// or https:// URL", param="base_url")
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value < _least(name):
                raise SettingsError(f"{name} is {value}; give at least {_least(name):g}", param=name)
        if not self.request_rate > 0 or not self.burstiness > 0 or not self.trace_time_scale > 0:
            raise SettingsError("request_rate, burstiness and trace_time_scale are more than 0", param="request_rate")
        if self.random_range_ratio >= 1:
            message = f"random_range_ratio is {self.random_range_ratio:g}; give 0 to less than 1"
            raise SettingsError(message, param="random_range_ratio")
        if self.dataset_name in _NEEDS_PATH and self.dataset_path is None:
            message = f"dataset_name {self.dataset_name!r} needs dataset_path, the file of the trace"
            raise SettingsError(message, param="dataset_path")
        _ = self.shown_metrics, self.shown_percentiles, self.limits_ms, self.headers

    @property
    def shown_metrics(self) -> tuple[str, ...]:
        """Raises SettingsError for one that there is not."""
        names = tuple(name.strip() for name in self.percentile_metrics.split(",") if name.strip())
        for name in names:
            if name not in _METRICS:
                message = f"percentile_metrics has {name!r}; known are {', '.join(_METRICS)}"
                raise SettingsError(message, param="percentile_metrics")
        return names

    @property
    def shown_percentiles(self) -> tuple[float, ...]:
        """From 0 to 100. Raises SettingsError."""
        try:
            percentiles = tuple(float(text) for text in self.metric_percentiles.split(","))
        except ValueError:
            percentiles = (math.nan,)
        if not all(0 <= one <= 100 for one in percentiles):
            message = f"metric_percentiles {self.metric_percentiles!r} is not numbers from 0 to 100 with commas between"
            raise SettingsError(message, param="metric_percentiles")
        return percentiles

    @property
    def limits_ms(self) -> dict[str, float]:
        """Of goodput, by metric. Raises SettingsError."""
        limits: dict[str, float] = {}
        for entry in self.goodput:
            name, _, text = entry.partition(":")
            try:
                limits[name] = float(text)
            except ValueError:
                limits[name] = math.nan
            if name not in GOODPUT_METRICS or not limits[name] > 0:
                message = f"goodput {entry!r} is not METRIC:MILLISECONDS with {', '.join(GOODPUT_METRICS)}"
                raise SettingsError(message, param="goodput")
        return limits

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries. Raises SettingsError."""
        headers = {"content-type": "application/json"}
        for entry in self.header:
            name, separator, value = entry.partition("=")
            if not separator or not name.strip():
                raise SettingsError(f"header {entry!r} is not NAME=VALUE", param="header")
            headers[name.strip().lower()] = value
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers


def _least(name: str) -> float:
    if name in {"seed", "num_warmups", "random_range_ratio", "random_prefix_len", "temperature"}:
        return 0
    return 0 if name.endswith("_s") or name in {"request_rate", "burstiness", "trace_time_scale"} else 1

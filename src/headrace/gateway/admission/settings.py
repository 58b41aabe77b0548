"""The settings of keys, limits, prices and queues. The command line makes flags, YAML keys and environment names."""

from dataclasses import dataclass, field

from headrace.errors import SettingsError
from headrace.gateway.admission.prices import parse_prices
from headrace.units import Seconds

_SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Who may use a gateway, how much, and in which order. Without any of it the gateway is open to everybody."""

    keys_file: str | None = None
    """YAML file of API keys and their limits, as `headrace keys` writes it; read again whenever it changes."""
    keys_interval_s: Seconds = 2.0
    """Time between two looks at the file."""
    price: tuple[str, ...] = ()
    """Prices per million tokens as MODEL=INPUT/CACHED/OUTPUT or MODEL=INPUT/OUTPUT, or one without MODEL= for all
    other models."""
    default_completion_tokens: int = 512
    """Completion tokens that are set aside for a request that does not limit them."""
    state: str = field(default="memory", repr=False)  # its URL may hold a password
    """Where limits are counted: `memory`, or the URL of a Redis server that several gateways share."""
    state_timeout_s: Seconds = 0.25
    """Time for that server to answer; without an answer the gateway limits by itself for a while."""
    max_in_flight_per_endpoint: int | None = None
    """Requests that an endpoint has in hand at a time, on average over the endpoints of a model; more wait here, by
    priority. None leaves the waiting to the engines."""
    max_queued_requests: int = 512
    """Requests of one class that may wait for a model; more are answered with 503."""
    queue_timeout_s: Seconds = 30.0
    """How long a request may wait."""
    queue_ageing_s: Seconds = 10.0
    """Waiting time that lifts a request by one class."""
    long_prompt_tokens: int | None = None
    """Requests with more prompt tokens are of the class `batch`."""

    def __post_init__(self) -> None:
        parse_prices(self.price)
        if self.state != "memory" and not self.state.startswith(_SCHEMES):
            raise SettingsError("state: give memory, or a URL that begins with redis://", param="state")
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, float) and not value > 0:
                raise SettingsError(f"{name} is {value} s; give more than 0", param=name)
            if isinstance(value, int) and value < 1:
                raise SettingsError(f"{name} is {value}; give at least 1", param=name)

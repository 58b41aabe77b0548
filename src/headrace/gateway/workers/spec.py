"""What a worker is started with, and what it says when it has started: one line of JSON each, over one socket, which
then stays open and silent. Its end means to either side that the other is gone."""

from typing import Literal

import msgspec

from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.endpoints.wanted import Wanted
from headrace.gateway.settings import GatewaySettings
from headrace.tokenization import TokenizationSettings


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """To the worker."""

    number: int
    socket: str
    settings: GatewaySettings
    admission: AdmissionSettings
    tokenization: TokenizationSettings
    settings_file: str | None
    wanted: Wanted
    log_level: str
    log_format: Literal["text", "json"]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """From the worker: it serves."""

    url: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """From the worker: a setting is wrong, and it ends."""

    message: str
    param: str | None

"""Puts an engine together: which parts there are and who is given what. Starts nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.engine.client.core_connection import MakeConnection
from headrace.engine.client.core_hosts import core_connection, make_hosts
from headrace.engine.client.host import CoreHost
from headrace.engine.config import AsyncEngineArgs, EngineConfig
from headrace.engine.front.input_processor import InputProcessor
from headrace.engine.front.life import EngineLife
from headrace.engine.front.metrics import PrometheusStatLogger
from headrace.engine.front.operations import EngineOperations
from headrace.engine.front.request_intake import RequestIntake
from headrace.engine.front.request_log import RequestLog
from headrace.engine.front.request_observer import RequestObserver
from headrace.engine.front.stat_loggers import LoggingStatLogger, StatLoggers
from headrace.engine.front.tracing import RequestTracer, otlp_tracer
from headrace.engine.settings import FrontEndSettings
from headrace.engine.statistics import EngineStatistics, engine_statistics
from headrace.engine.vllm_backend.connection import connect_to_vllm
from headrace.engine.wire.messages import CoreStatistics
from headrace.tokenization import TokenizationService, TokenizationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What an `AsyncLLMEngine` calls."""

    tokenization: TokenizationService
    inputs: InputProcessor
    requests: RequestIntake
    life: EngineLife
    operations: EngineOperations
    loggers: StatLoggers
    registry: CollectorRegistry
    has_tracer: bool
    hosts: tuple[CoreHost, ...]
    """Of our own cores; empty where something else computes."""

    def statistics(self) -> EngineStatistics:
        return _statistics(self.life, self.requests)


def parts_for(
    engine_args: AsyncEngineArgs,
    *,
    in_process: bool,
    settings: FrontEndSettings,
    tokenization: TokenizationService | None,
    registry: CollectorRegistry | None,
) -> tuple[EngineConfig, EngineParts]:
    """Read the model's configuration (blocking, milliseconds). Raises SettingsError."""
    config = engine_args.create_engine_config()
    is_ours = engine_args.backend == "headrace"
    endpoint = engine_args.otlp_traces_endpoint
    loggers = StatLoggers()
    if not engine_args.disable_log_stats:
        loggers.add("logging", LoggingStatLogger())
    parts = assemble(
        config,
        hosts=make_hosts(config, in_process=in_process) if is_ours else (),
        connect=None if is_ours else connect_to_vllm(engine_args, settings, in_process=in_process),
        settings=settings,
        tokenization=tokenization,
        request_log=RequestLog(is_on=engine_args.logs_requests, max_chars=engine_args.max_log_len),
        loggers=loggers,
        tracer=None if endpoint is None else otlp_tracer(endpoint, model_name=config.model.served_model_name),
        registry=registry,
    )
    return config, parts


def assemble(
    config: EngineConfig,
    *,
    hosts: Sequence[CoreHost],
    connect: MakeConnection | None = None,
    settings: FrontEndSettings | None = None,
    tokenization: TokenizationService | None = None,
    request_log: RequestLog | None = None,
    loggers: StatLoggers | None = None,
    tracer: RequestTracer | None = None,
    registry: CollectorRegistry | None = None,
) -> EngineParts:
    """The parts of an engine whose cores run in `hosts`, or are reached by `connect` where they are not ours.

    Nothing is logged or traced unless a log, loggers or a tracer are given.
    """
    settings = settings or FrontEndSettings()
    registry = registry or CollectorRegistry()
    loggers = loggers or StatLoggers()
    service = tokenization or TokenizationService(TokenizationSettings(), registry=registry)
    inputs = InputProcessor(config, tokenization=service)
    observer = RequestObserver(
        request_log=request_log or RequestLog(is_on=False, max_chars=None),
        loggers=loggers,
        tracer=tracer,
        statistics=lambda: _statistics(life, requests),
    )
    requests = RequestIntake(inputs, observer=observer, max_num_requests=settings.max_num_requests)
    life = EngineLife(
        config,
        connect=connect or core_connection(hosts, settings),
        settings=settings,
        tokenization=service,
        owns_tokenization=tokenization is None,
        requests=requests,
        loggers=loggers,
        tracer=tracer,
    )
    metrics = PrometheusStatLogger(
        config,
        registry=registry,
        statistics=lambda: _statistics(life, requests),
        lora_names=requests.lora_names,
    )
    loggers.add("prometheus", metrics)
    return EngineParts(
        tokenization=service,
        inputs=inputs,
        requests=requests,
        life=life,
        operations=EngineOperations(life),
        loggers=loggers,
        registry=registry,
        has_tracer=tracer is not None,
        hosts=tuple(hosts),
    )


def _statistics(life: EngineLife, requests: RequestIntake) -> EngineStatistics:
    core = life.client.statistics if life.client is not None else CoreStatistics()
    return engine_statistics(core, num_unfinished=len(requests))

"""The engine server over a core that computes nothing; see `headrace.cli.benchmarks.null_core`.

    python -m headrace.cli.benchmarks.server.child MODEL_DIR PORT NUM_STREAMS CORE_MODULE

Serves the model as `bench` until SIGTERM.
"""

import sys

import uvloop

from headrace.aio.stop import StopRequest, catch_signals
from headrace.cli.benchmarks.gateway.workload import MODEL
from headrace.engine import AsyncEngineArgs, AsyncLLMEngine
from headrace.engine.client.host import ProcessHost
from headrace.engine.config import EngineConfig
from headrace.server.listener import open_listener
from headrace.server.run import serve_engine
from headrace.server.settings import ServerSettings

_MIN_BATCHED_TOKENS = 2048


def config_of(model: str, *, num_streams: int) -> EngineConfig:
    """Room for so many requests at once."""
    args = AsyncEngineArgs(
        model=model,
        served_model_name=MODEL,
        max_num_seqs=num_streams,
        max_num_batched_tokens=max(_MIN_BATCHED_TOKENS, num_streams),
        disable_log_requests=True,
    )
    return args.create_engine_config()


async def _serve(model: str, *, port: int, num_streams: int, core_module: str) -> None:
    stop = StopRequest()
    settings = ServerSettings(host="127.0.0.1", port=port)
    config = config_of(model, num_streams=num_streams)
    with open_listener(settings) as listener:
        async with AsyncLLMEngine(config, host=ProcessHost(module=core_module)) as engine:
            catch_signals(stop)
            await serve_engine(engine, settings, listener=listener, stop=stop)


def main() -> None:
    model, port, num_streams, core_module = sys.argv[1:]
    uvloop.run(_serve(model, port=int(port), num_streams=int(num_streams), core_module=core_module))


if __name__ == "__main__":
    main()

"""Which executor a configuration asks for. Each loads on choice: the core needs torch in its process for one only."""

from headrace.engine.config import EngineConfig
from headrace.engine.executor.group_executor import GroupExecutor, WorkerStarter
from headrace.engine.executor.protocol import Executor


def make_executor(config: EngineConfig) -> Executor:
    """Not started yet. Raises SettingsError when a package is missing that it needs."""
    if config.parallel.executor == "local":
        from headrace.engine.executor.local import LocalExecutor

        return LocalExecutor(config)
    return GroupExecutor(config, starter=_make_starter(config))


def _make_starter(config: EngineConfig) -> WorkerStarter:
    if config.parallel.executor == "process":
        from headrace.engine.executor.process import ProcessStarter

        return ProcessStarter()
    from headrace.engine.executor.ray import RayStarter

    return RayStarter(address=config.parallel.ray_address)

"""Adapters are loaded, listed, pinned and removed on every worker, while requests run."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.config import EngineArgs
from headrace.engine.core.engine_core import EngineCore
from headrace.engine.executor.local import LocalExecutor
from headrace.engine.lora_request import LoRARequest
from headrace.errors import InvalidRequestError, OverloadedError, UnsupportedError
from headrace.testing.core_driver import CoreDriver, add_request

PROMPT = [5, 9, 3, 11, 80]


class LoRAEngine:
    """A core whose executor a test can reach."""

    def __init__(self, adapted: Any, **args: Any) -> None:
        config = EngineArgs(
            model=str(adapted.base.directory),
            cpu_threads=1,
            device="cpu",
            **{"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, **args},
        ).create_engine_config()
        self.executor = LocalExecutor(config)
        self.driver = CoreDriver(EngineCore(config, self.executor))

    def call(self, method: str, *args: object) -> Any:
        (result,) = self.executor.collective_rpc(method, args=args)
        return result


@pytest.fixture
def engine(adapted: Any) -> LoRAEngine:
    return LoRAEngine(adapted)


def test_an_adapter_is_loaded_once(engine: LoRAEngine, adapted: Any) -> None:
    assert engine.call("add_lora", adapted.request("mlp")) is True
    assert engine.call("add_lora", adapted.request("mlp")) is False
    assert engine.call("list_loras") == [3]
    assert engine.call("remove_lora", 3) is True
    assert engine.call("remove_lora", 3) is False
    assert engine.call("list_loras") == []


def test_the_first_request_loads_its_adapter(engine: LoRAEngine, adapted: Any) -> None:
    engine.driver.add(add_request("a", PROMPT, lora=adapted.request("wide")))
    engine.driver.run()
    assert engine.call("list_loras") == [1]


def test_an_evicted_adapter_is_loaded_again(engine: LoRAEngine, adapted: Any) -> None:
    for number, name in enumerate(["wide", "attention", "mlp", "output", "wide"]):
        engine.driver.add(add_request(str(number), PROMPT, lora=adapted.request(name)))
        assert engine.driver.run()[str(number)] == adapted.greedy(name, PROMPT)
    assert engine.call("list_loras") == [1, 3, 4]


def test_a_pinned_adapter_is_not_evicted(engine: LoRAEngine, adapted: Any) -> None:
    engine.call("add_lora", adapted.request("wide"))
    assert engine.call("pin_lora", 1) is True
    assert engine.call("pin_lora", 2) is False
    for name in ("attention", "mlp", "output"):
        engine.call("add_lora", adapted.request(name))
    assert engine.call("list_loras") == [1, 3, 4]
    with pytest.raises(OverloadedError, match="cannot pin another"):
        engine.call("pin_lora", 3)


def test_requests_that_run_finish_with_a_removed_adapter(engine: LoRAEngine, adapted: Any) -> None:
    engine.driver.add(add_request("a", PROMPT, lora=adapted.request("attention")))
    engine.driver.step()
    assert engine.call("remove_lora", 2) is True
    assert engine.call("list_loras") == []
    assert engine.driver.run()["a"] == adapted.greedy("attention", PROMPT)
    engine.driver.add(add_request("b", [1, 2, 3]))
    engine.driver.run()
    assert engine.call("remove_lora", 2) is False


def test_the_same_id_with_another_path_is_refused(engine: LoRAEngine, adapted: Any) -> None:
    engine.call("add_lora", adapted.request("wide"))
    other = LoRARequest("wide", 1, str(adapted.paths["mlp"]))
    with pytest.raises(InvalidRequestError, match="lora_int_id 1 is the adapter 'wide'"):
        engine.call("add_lora", other)
    engine.driver.add(add_request("a", PROMPT, lora=other))
    engine.driver.run()
    assert "lora_int_id 1" in str(engine.driver.ends["a"].error)


def test_an_adapter_of_too_high_a_rank_is_refused(adapted: Any) -> None:
    with pytest.raises(InvalidRequestError, match="rank 8; max_lora_rank is 7"):
        LoRAEngine(adapted, max_lora_rank=7).call("add_lora", adapted.request("wide"))


def test_without_adapters_every_call_says_how_to_turn_them_on(adapted: Any, make_driver: Callable[..., Any]) -> None:
    engine = LoRAEngine(adapted, enable_lora=False)
    for method, argument in (("add_lora", adapted.request("wide")), ("remove_lora", 1), ("pin_lora", 1)):
        with pytest.raises(UnsupportedError, match="enable_lora"):
            engine.call(method, argument)

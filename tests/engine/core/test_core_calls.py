"""Calls of a core's methods: typed arguments, results of any kind, errors that are raised on the other side."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.engine.client.core_client import CoreClient
from headrace.engine.client.host import ThreadHost
from headrace.engine.core.calls import run_call
from headrace.engine.lora_request import LoRARequest
from headrace.engine.wire.errors import from_wire, to_wire
from headrace.engine.wire.messages import Call, WireError
from headrace.engine.wire.remote_call import RemoteCall, pack_call, pack_results, unpack_call
from headrace.errors import EngineError, InvalidRequestError, UnsupportedError
from headrace.testing.fake_core import FakeCore, fake_engine_config


class Operations:
    """Remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def add_lora(self, lora: LoRARequest) -> bool:
        self.calls.append((lora,))
        return True

    def wake_up(self, tags: tuple[str, ...] | None) -> None:
        self.calls.append((tags,))

    def sleep(self, level: int) -> None:
        raise InvalidRequestError(f"level is {level}", param="level")

    def check_integrity(self) -> None:
        raise AssertionError("blocks leaked")

    def list_loras(self) -> list[int]:
        raise ZeroDivisionError

    def close(self) -> None:
        raise AssertionError("not for the front end")


def call(method: str, *arguments: object) -> Any:
    return run_call(Operations(), Call(call_id=1, method=method, arguments=arguments))


def test_arguments_get_the_types_of_the_method() -> None:
    operations = Operations()
    lora = {"lora_name": "a", "lora_int_id": 1, "lora_path": "/a"}
    run_call(operations, Call(call_id=1, method="add_lora", arguments=(lora,)))
    run_call(operations, Call(call_id=2, method="wake_up", arguments=(["weights"],)))
    run_call(operations, Call(call_id=3, method="wake_up", arguments=(None,)))
    assert operations.calls == [(LoRARequest("a", 1, "/a"),), (("weights",),), (None,)]


@pytest.mark.parametrize("arguments", [(), ("one",), (1, 2)])
def test_wrong_arguments_are_refused_with_the_method_and_what_came(arguments: tuple[object, ...]) -> None:
    error = call("sleep", *arguments).error
    assert error.kind == "InvalidRequestError"
    assert "sleep was called with" in error.message


def test_an_error_of_ours_keeps_its_class_and_field() -> None:
    assert call("sleep", 7).error == WireError(kind="InvalidRequestError", message="level is 7", param="level")


def test_a_failed_assertion_is_an_answer() -> None:
    assert "blocks leaked" in call("check_integrity").error.message


@pytest.mark.parametrize("method", ["close", "__init__", "no_such"])
def test_only_listed_methods_are_called(method: str) -> None:
    assert "has no method" in call(method).error.message


def test_a_defect_of_the_core_is_no_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        call("list_loras")


class OurError(UnsupportedError):
    """Of a module that the other side does not know."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [(InvalidRequestError("x"), InvalidRequestError), (OurError("x"), UnsupportedError), (KeyError("x"), EngineError)],
)
def test_an_error_crosses_as_the_nearest_public_class(error: Exception, kind: type[EngineError]) -> None:
    assert type(from_wire(to_wire(error))) is kind


def test_an_unknown_class_becomes_an_engine_error() -> None:
    assert type(from_wire(WireError(kind="HeadraceErrorOfTomorrow", message="x"))) is EngineError
    assert type(from_wire(WireError(kind="ClassVar", message="x"))) is EngineError


def test_a_function_of_the_caller_crosses_by_value() -> None:
    offset = 3
    call = unpack_call(pack_call(RemoteCall(method=lambda worker: worker + offset)))
    assert not isinstance(call.method, str)
    assert call.method(4) == 7


def test_what_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="collective_rpc of load cannot be sent"):
        pack_call(RemoteCall(method="load", args=(threading.Lock(),)))
    with pytest.raises(EngineError, match="what load returned cannot be sent back"):
        pack_results([threading.Lock()], name="load")


def test_results_that_are_too_long_are_refused() -> None:
    with pytest.raises(EngineError, match="return less"):
        pack_results([bytes(49 * 2**20)], name="weights")


def test_a_class_that_is_not_there_is_named() -> None:
    packed = pack_call(RemoteCall(method="f")).replace(b".remote_call", b".remote_hall")
    with pytest.raises(EngineError, match="remote_hall"):
        unpack_call(packed)


@pytest.fixture
def core() -> FakeCore:
    return FakeCore()


@pytest.fixture
async def client(core: FakeCore) -> AsyncIterator[CoreClient]:
    client = CoreClient(
        host=ThreadHost(build_core=lambda _config: core),
        hang_timeout_s=10.0,
        on_step=lambda _deltas: None,
        on_death=lambda _error: None,
    )
    await client.start(msgspec.json.encode(fake_engine_config()))
    await client.wait_ready(timeout_s=10.0)
    yield client
    core.release()
    await client.aclose(timeout_s=5.0)


async def test_a_call_returns_what_the_method_does(client: CoreClient, core: FakeCore) -> None:
    assert await client.call("is_sleeping") is False
    assert await client.call("sleep", 1) is None
    assert await client.call("is_sleeping") is True
    assert client.statistics.sleep_level == 1


async def test_a_call_raises_what_the_method_raises(client: CoreClient) -> None:
    with pytest.raises(InvalidRequestError, match="sleep was called with"):
        await client.call("sleep", "deeply")
    assert await client.call("reset_prefix_cache") is True


async def test_a_remote_call_takes_and_returns_any_value(client: CoreClient) -> None:
    def describe(worker: FakeCore, *, times: int) -> dict[str, object]:
        return {"blocks": worker.num_blocks, "set": {times}}

    assert await client.collective_rpc(describe, kwargs={"times": 2}) == [{"blocks": 1024, "set": {2}}]
    assert await client.collective_rpc("_blocks", args=(17,)) == [2]


async def test_a_call_that_takes_too_long_ends_with_an_error(client: CoreClient, core: FakeCore) -> None:
    core.hang()
    with pytest.raises(EngineError, match=r"did not answer collective_rpc within 0\.05 s"):
        await client.collective_rpc("step", timeout_s=0.05)
    core.release()
    assert await client.call("is_sleeping") is False

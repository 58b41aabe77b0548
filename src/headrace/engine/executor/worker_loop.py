"""A worker's side of the link to its executor: load, then run what comes, until told to leave or nobody is there."""

import contextlib
import functools
import socket
import traceback

import msgspec

from headrace.engine.config import EngineConfig
from headrace.engine.executor.worker import Worker
from headrace.engine.executor.worker_wire import (
    Called,
    CallWorker,
    Launch,
    Launched,
    Leave,
    LinkClosedError,
    Step,
    Stepped,
    ToWorker,
    WorkerFailed,
    WorkerLink,
)
from headrace.engine.models.parallel import GroupPlace, PeerLostError, TorchGroup
from headrace.engine.wire.errors import to_wire
from headrace.engine.wire.remote_call import pack_results, unpack_call
from headrace.errors import EngineError


def serve_worker(sock: socket.socket, *, listener: socket.socket | None) -> bool:
    """Serve one executor from its `Launch` to its `Leave` or its end. False when the worker failed.

    `listener` is bound to the place where the group meets, and given to the first worker only. What goes wrong is
    reported as `WorkerFailed`. Closes the socket.
    """
    link: WorkerLink[ToWorker] = WorkerLink(sock, received=ToWorker)
    try:
        launch = _first_message(link)
        with contextlib.closing(_make_worker(launch, listener)) as worker:
            link.send(Launched(worker.start()))
            _run(link, worker, draws=launch.rank == 0)
    except LinkClosedError:
        return True
    except Exception as error:  # noqa: BLE001 - the outermost boundary of the worker: the executor gets to know
        _report_failure(link, error)
        return False
    else:
        return True
    finally:
        link.close()


def _first_message(link: WorkerLink[ToWorker]) -> Launch:
    message = link.receive()
    if not isinstance(message, Launch):
        raise EngineError(f"a worker expected a Launch message first, got {message!r}")
    return message


def _make_worker(launch: Launch, listener: socket.socket | None) -> Worker:
    config = msgspec.json.decode(launch.config, type=EngineConfig)
    if launch.size == 1:
        return Worker(config, device_index=launch.device_index)
    place = GroupPlace(
        rank=launch.rank,
        size=launch.size,
        host=launch.host,
        meeting_host=launch.meeting_host,
        meeting_port=launch.meeting_port,
        listener=listener,
    )
    join_group = functools.partial(TorchGroup, place)
    return Worker(config, join_group=join_group, device_index=launch.device_index)


def _run(link: WorkerLink[ToWorker], worker: Worker, *, draws: bool) -> None:
    """Returns after a `Leave`. Raises what a step raises, and LinkClosedError when the executor is gone."""
    while True:
        match link.receive():
            case Step(plan=plan) if draws:
                link.send(Stepped(worker.execute(plan)))
            case Step(plan=plan, drawn=drawn):
                worker.follow(plan, drawn)
            case CallWorker() as message:
                link.send(_call(worker, message))
            case Leave():
                return
            case Launch():
                raise EngineError("a worker got a second Launch message")


def _call(worker: Worker, message: CallWorker) -> Called:
    try:
        call = unpack_call(message.call)
        result = worker.call(call.method, call.args, call.kwargs)
        return Called(call_id=message.call_id, results=pack_results([result], name=call.name))
    except Exception as error:  # noqa: BLE001 - whatever a method raises is its caller's: the worker goes on
        return Called(call_id=message.call_id, error=to_wire(error))


def _report_failure(link: WorkerLink[ToWorker], error: Exception) -> None:
    text = "".join(traceback.format_exception(error))
    is_peer_lost = isinstance(error, PeerLostError)
    with contextlib.suppress(LinkClosedError):  # nobody is left to be told
        link.send(WorkerFailed(error=to_wire(error), traceback=text, is_peer_lost=is_peer_lost))

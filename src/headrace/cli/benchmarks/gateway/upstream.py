"""Fake endpoints that must never be what is measured: one loop over bare sockets, answers made beforehand.

Run as a process of its own: `python -m headrace.cli.benchmarks.gateway.upstream MODEL MAX_MODEL_LEN PORT [PORT ...]`.
Each port is an endpoint. A request's `seed` comes back as `usage.prompt_tokens`, so that whoever asks says how many
tokens the prompt has; `max_tokens` is the number of events of a stream. Each event's text is the time at which it was
sent, in nanoseconds of the system's monotonic clock.
"""

import re
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

EVENT_INTERVAL_S = 0.02
_SAME_MOMENT_S = 0.001
_BUFFER_NUM_BYTES = 1 << 20
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SEED = re.compile(rb'"seed": ?(\d+)')
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_STREAM = re.compile(rb'"stream": ?true')
_CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
_JSON_HEAD = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_COMPLETION_TOKENS = 16
_ANSWER = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"%s","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The river carries the water to the wheel, and the wheel turns all day '
    b'long."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
    b'"total_tokens":%d}}'
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"%s","choices":'
    b'[{"index":0,"delta":{"content":" %%d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST_EVENTS = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"%s","choices":[],'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\ndata: [DONE]\n\n'
)


def answer_of(model: str, *, num_prompt_tokens: int) -> bytes:
    """The body that a request without `stream` gets."""
    num_tokens = num_prompt_tokens + _COMPLETION_TOKENS
    return _ANSWER % (model.encode(), num_prompt_tokens, _COMPLETION_TOKENS, num_tokens)


class _Connection:
    """One client: what has come of its request."""

    __slots__ = ("is_gone", "num_events_left", "num_missing", "num_prompt_tokens", "parts", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parts: list[bytes] = []
        self.is_gone = False
        self.num_missing = 0
        self.num_events_left = 0
        self.num_prompt_tokens = 0


class Upstream:
    """Serves until it is told to stop by a signal. It never waits for a client."""

    def __init__(self, *, model: str, max_model_len: int, ports: Sequence[int]) -> None:
        self._model = model
        self._event = _EVENT % model.encode()
        self._epoll = select.epoll()
        self._listeners = {listener.fileno(): listener for listener in map(_listen, ports)}
        for fd in self._listeners:
            self._epoll.register(fd, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._due: list[tuple[float, list[_Connection]]] = []
        """When which streams get their next event, ascending; those that began within a millisecond go together."""
        self._gets = self._fixed_answers(max_model_len)
        self._is_stopping = False

    def stop(self, *_: object) -> None:
        self._is_stopping = True

    def serve(self) -> None:
        """Blocks until `stop`."""
        while not self._is_stopping:
            timeout_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0
            for fd, _ in self._epoll.poll(timeout_s):
                connection = self._connections.get(fd)
                if connection is not None:
                    self._read(fd, connection)
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
            if self._due:
                self._send_due(time.monotonic())

    def _fixed_answers(self, max_model_len: int) -> dict[bytes, bytes]:
        model = self._model
        card = f'{{"id":"{model}","object":"model","created":1,"owned_by":"bench","max_model_len":{max_model_len}}}'
        info = f'{{"model_path":"{model}","served_model_name":"{model}","version":"0.0"}}'
        bodies = {
            b"/v1/models": f'{{"object":"list","data":[{card}]}}'.encode(),
            b"/health": b"{}",
            b"/get_model_info": info.encode(),
            b"/model_info": info.encode(),
            b"/get_server_info": info.encode(),
            b"/server_info": info.encode(),
            b"/version": b'{"version":"0.0"}',
        }
        return {path: _JSON_HEAD % (b"200 OK", len(body), body) for path, body in bodies.items()}

    def _accept(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[sock.fileno()] = _Connection(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, fd: int, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_BUFFER_NUM_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd, connection)
            return
        if connection.parts:
            connection.parts.append(data)
            connection.num_missing -= len(data)
            if connection.num_missing > 0:
                return
            data = b"".join(connection.parts)
            connection.parts = []
        head_end = data.find(b"\r\n\r\n")
        missing = num_missing(data, head_end)
        if missing:
            connection.parts, connection.num_missing = [data], missing
            return
        self._answer(connection, data, head_end)

    def _answer(self, connection: _Connection, data: bytes, head_end: int) -> None:
        if not data.startswith(b"POST"):
            path = data.split(b" ", 2)[1].partition(b"?")[0]
            answer = self._gets.get(path) or _JSON_HEAD % (b"404 Not Found", 2, b"{}")
            self._send(connection, answer)
            return
        found = _SEED.search(data, head_end)
        num_prompt_tokens = int(found[1]) if found else 0
        if found is None:
            self._send(connection, _JSON_HEAD % (b"404 Not Found", 2, b"{}"))
        elif _STREAM.search(data, head_end):
            self._begin_stream(connection, data, head_end, num_prompt_tokens)
        else:
            body = answer_of(self._model, num_prompt_tokens=num_prompt_tokens)
            self._send(connection, _JSON_HEAD % (b"200 OK", len(body), body))

    def _begin_stream(self, connection: _Connection, data: bytes, head_end: int, num_prompt_tokens: int) -> None:
        found = _MAX_TOKENS.search(data, head_end)
        connection.num_events_left = int(found[1]) if found else _COMPLETION_TOKENS
        connection.num_prompt_tokens = num_prompt_tokens
        self._send(connection, _STREAM_HEAD)
        self._join(connection, time.monotonic())

    def _join(self, connection: _Connection, now_s: float) -> None:
        for due_s, group in self._due:
            if due_s - now_s <= _SAME_MOMENT_S:
                group.append(connection)
                return
        self._due.append((now_s + EVENT_INTERVAL_S, [connection]))

    def _send_due(self, now_s: float) -> None:
        due = self._due
        while due and due[0][0] <= now_s:
            due_s, group = due.pop(0)
            event = self._event % time.monotonic_ns()
            framed = b"%x\r\n%s\r\n" % (len(event), event)
            left = [connection for connection in group if self._send_event(connection, framed)]
            if left:
                due.append((due_s + EVENT_INTERVAL_S, left))

    def _send_event(self, connection: _Connection, framed: bytes) -> bool:
        """Send the next event; False after the last, and to a client that has left."""
        if connection.is_gone:
            return False
        if connection.num_events_left:
            connection.num_events_left -= 1
            self._send(connection, framed)
            return True
        counts = (connection.num_prompt_tokens, _COMPLETION_TOKENS, connection.num_prompt_tokens + _COMPLETION_TOKENS)
        event = _LAST_EVENTS % (self._model.encode(), *counts)
        self._send(connection, b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event))
        return False

    def _send(self, connection: _Connection, data: bytes) -> None:
        """All of it, or the connection is cut: a client that has left, or reads no more, as one that was stopped."""
        try:
            num_sent = connection.sock.send(data)
        except OSError:
            num_sent = 0
        if num_sent < len(data) and not connection.is_gone:
            self._drop(connection.sock.fileno(), connection)

    def _drop(self, fd: int, connection: _Connection) -> None:
        self._epoll.unregister(fd)
        del self._connections[fd]
        connection.is_gone = True
        connection.sock.close()


def num_missing(data: bytes, head_end: int) -> int:
    """How many bytes of a message are still to come that begins like `data`, its head ending there (-1: not yet); 1
    where that is not known."""
    if head_end < 0:
        return 1
    if found := _LENGTH.search(data, 0, head_end):
        return max(0, head_end + 4 + int(found[1]) - len(data))
    if _CHUNKED.search(data, 0, head_end):
        return 0 if data.endswith(b"0\r\n\r\n") else 1
    return 0


def _listen(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    return listener


def main() -> None:
    model, max_model_len, *ports = sys.argv[1:]
    upstream = Upstream(model=model, max_model_len=int(max_model_len), ports=[int(port) for port in ports])
    signal.signal(signal.SIGTERM, upstream.stop)
    upstream.serve()


if __name__ == "__main__":
    main()

"""Sends requests as fast as answers come, or at a given rate, or holds many streams; and looks at every answer.

A process of its own, one loop over bare sockets: it reads a Job from its standard input and writes an Outcome. Requests
are made beforehand; but for a few words in each that change, nothing is computed per request.
"""

import ctypes
import os
import re
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.cli.benchmarks.gateway.job import Job, Outcome, Template, Times, Work

_BUFFER_NUM_BYTES = 1 << 18
_EVENTS_NUM_BYTES = 8192
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STAMP = re.compile(rb'"content": ?" (\d{6,})"')
_STUCK_S = 30.0
_CLOCK_MONOTONIC = 1


class _WrongAnswerError(Exception):
    """An answer that is not what it should be."""


class Requests:
    """The requests of a work in order, each chat with words of its own."""

    def __init__(self, work: Work, *, first_chat: int) -> None:
        self.num_chats = first_chat
        self._work = work
        self._num_kinds = len(work.chats)

    def next_chat(self) -> "Chat":
        number = self.num_chats
        self.num_chats += 1
        work = self._work
        kind = number % self._num_kinds
        return Chat(work.chats[kind], self._words(number if work.is_new_each_time else kind))

    def _words(self, number: int) -> bytes:
        words = self._work.words
        chosen = []
        for _ in range(self._work.num_words):
            number, index = divmod(number, len(words))
            chosen.append(words[index])
        return b"".join(chosen)


class Chat:
    """One chat on its way."""

    __slots__ = ("_turns", "_words", "num_sent")

    def __init__(self, turns: Sequence[Template], words: bytes) -> None:
        self._turns = turns
        self._words = words
        self.num_sent = 0

    def next(self) -> tuple[bytes, bytes] | None:
        """The next request and its answer."""
        if self.num_sent == len(self._turns):
            return None
        turn = self._turns[self.num_sent]
        self.num_sent += 1
        return turn.head + self._words + turn.tail, turn.answer


class _Client:
    """One connection."""

    __slots__ = ("answer", "began_ns", "chat", "is_later", "last_ns", "num_events", "parts", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.chat: Chat | None = None
        self.is_later = False
        self.answer = b""
        self.parts: list[bytes] = []
        self.unsent: memoryview | None = None
        self.began_ns = 0
        self.last_ns = 0
        self.num_events = 0


class Load:
    """One job."""

    def __init__(self, job: Job, work: Work) -> None:
        self._job = job
        self._requests = Requests(work, first_chat=job.first_chat)
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._times = array("q")
        self._later_times = array("q")
        self._is_measuring = False
        self._num_done = 0
        self._num_ended = 0
        self._num_counted = 0

    def run(self) -> Outcome:
        """Do the job (blocking)."""
        error = None
        meter = _Meter(self._job.pids)
        try:
            {"closed": self._run_closed, "open": self._run_open, "streams": self._run_streams}[self._job.kind](meter)
        except (_WrongAnswerError, OSError) as wrong:
            error = f"{type(wrong).__name__}: {wrong}"
        meter.end()
        return Outcome(
            num_done=self._num_done,
            num_chats=self._requests.num_chats,
            measured_s=meter.elapsed_s,
            cpu_s=meter.cpu_s,
            own_cpu_s=meter.own_cpu_s,
            num_counted=self._num_counted,
            times=_times_of(self._times),
            later_times=_times_of(self._later_times),
            error=error,
        )

    # as fast as answers come

    def _run_closed(self, meter: "_Meter") -> None:
        for _ in range(self._job.num_connections):
            self._send_next(self._connect(), time.monotonic_ns())
        self._poll_for(self._job.warm_up_s)
        self._begin(meter)
        self._poll_for(self._job.measured_s)

    def _poll_for(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            for client in self._ready(left_s):
                if self._read(client):
                    self._send_next(client, time.monotonic_ns())

    # at a given rate

    def _run_open(self, meter: "_Meter") -> None:
        job = self._job
        idle = [self._connect() for _ in range(job.num_connections)]
        interval_ns = int(1e9 / job.rate)
        timer = _interval_timer(interval_ns)
        self._epoll.register(timer, select.EPOLLIN)
        due_ns = time.monotonic_ns()
        begin_ns = due_ns + int(job.warm_up_s * 1e9)
        end_ns = begin_ns + int(job.measured_s * 1e9)
        while (now_ns := time.monotonic_ns()) < end_ns:
            if not self._is_measuring and now_ns >= begin_ns:
                self._begin(meter)
            while due_ns <= now_ns and idle:
                self._send_next(idle.pop(), due_ns)  # late where none is idle: its time counts from when it was due
                due_ns += interval_ns
            idle += [client for client in self._ready(1.0, timer=timer) if self._read(client)]
        os.close(timer)

    # many streams

    def _run_streams(self, meter: "_Meter") -> None:
        job = self._job
        begun_s = time.monotonic()
        for number in range(job.num_connections):
            self._poll_streams(begun_s + job.warm_up_s * number / job.num_connections)
            self._send_next(self._connect(), time.monotonic_ns())
        self._poll_streams(time.monotonic() + 1.0)
        self._begin(meter)
        self._poll_streams(time.monotonic() + job.measured_s)
        meter.end()
        self._is_measuring = False
        deadline_s = time.monotonic() + _STUCK_S
        while self._num_ended < job.num_connections:
            if time.monotonic() > deadline_s:
                raise _WrongAnswerError(f"{job.num_connections - self._num_ended} streams did not end")
            self._poll_streams(time.monotonic() + 0.1)

    def _poll_streams(self, end_s: float) -> None:
        while (left_s := end_s - time.monotonic()) > 0:
            for client in self._ready(left_s):
                self._read_events(client)

    def _read_events(self, client: _Client) -> None:
        data = client.sock.recv(_EVENTS_NUM_BYTES)
        now_ns = time.monotonic_ns()
        if not client.last_ns and not data.startswith(b"HTTP/1.1 200"):
            raise _WrongAnswerError(repr(data[:300]))
        client.last_ns = client.last_ns or now_ns
        for stamp in _STAMP.findall(data):
            client.num_events += 1
            if self._is_measuring:
                self._num_done += 1
                self._times.append(now_ns - int(stamp))
                self._later_times.append(now_ns - client.last_ns)
            client.last_ns = now_ns
        if not data:
            raise _WrongAnswerError(f"a stream broke off after {client.num_events} events")
        if data.endswith(b"0\r\n\r\n"):
            if client.num_events != self._job.num_events:
                raise _WrongAnswerError(f"a stream ended with {client.num_events} of {self._job.num_events} events")
            self._num_ended += 1
            self._epoll.unregister(client.sock.fileno())

    # common to all

    def _connect(self) -> _Client:
        sock = socket.create_connection(("127.0.0.1", self._job.port), timeout=10.0)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = self._clients[sock.fileno()] = _Client(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return client

    def _ready(self, timeout_s: float, *, timer: int | None = None) -> Iterator[_Client]:
        for fd, event in self._epoll.poll(timeout_s):
            if fd == timer:
                os.read(fd, 8)
                continue
            client = self._clients[fd]
            if event & select.EPOLLOUT:
                self._send_rest(fd, client)
            if event & ~select.EPOLLOUT:
                yield client

    def _send_next(self, client: _Client, began_ns: int) -> None:
        found = client.chat.next() if client.chat is not None else None
        if found is None:
            client.chat = self._requests.next_chat()
            found = client.chat.next()
            assert found is not None
        data, client.answer = found
        client.is_later = client.chat is not None and client.chat.num_sent > 1
        client.began_ns = began_ns
        num_sent = client.sock.send(data)
        if num_sent < len(data):
            client.unsent = memoryview(data)[num_sent:]
            self._epoll.modify(client.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, fd: int, client: _Client) -> None:
        if client.unsent is not None:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
            if not client.unsent:
                client.unsent = None
                self._epoll.modify(fd, select.EPOLLIN)

    def _read(self, client: _Client) -> bool:
        """Whether the answer is complete."""
        data = client.sock.recv(_BUFFER_NUM_BYTES)
        if client.parts or not data.endswith(client.answer):
            client.parts.append(data)
            data = b"".join(client.parts)
            if not _is_complete(data):
                if not client.parts[-1]:
                    raise _WrongAnswerError(f"closed after {data[-300:]!r}")
                return False
            client.parts = []
        if not data.startswith(b"HTTP/1.1 200") or not data.endswith(client.answer):
            self._judge(data)
        if self._is_measuring:
            self._num_done += 1
            elapsed_ns = time.monotonic_ns() - client.began_ns
            self._times.append(elapsed_ns)
            if client.is_later:
                self._later_times.append(elapsed_ns)
        return True

    def _judge(self, data: bytes) -> None:
        """Of a peer that writes answers anew, at least the mark must have come."""
        if self._job.is_exact or not data.startswith(b"HTTP/1.1 200") or self._job.mark.encode() not in data:
            raise _WrongAnswerError(repr(data[:600]))
        if self._job.counted and self._is_measuring:
            self._num_counted += data.count(self._job.counted.encode())

    def _begin(self, meter: "_Meter") -> None:
        self._is_measuring = True
        meter.begin()


class _Meter:
    """Wall time and processor time between `begin` and `end`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._begun: tuple[float, float, float] | None = None
        self.elapsed_s = self.cpu_s = self.own_cpu_s = 0.0

    def begin(self) -> None:
        self._begun = self._now()

    def end(self) -> None:
        """Counts once."""
        if self._begun is not None:
            self.elapsed_s, self.cpu_s, self.own_cpu_s = (
                now - then for now, then in zip(self._now(), self._begun, strict=True)
            )
            self._begun = None

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), sum(map(cpu_s_of, self._pids)), time.process_time()


def cpu_s_of(pid: int) -> float:
    """Processor time of a process, all its threads; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_complete(data: bytes) -> bool:
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    if found := _LENGTH.search(data, 0, head_end):
        return len(data) >= head_end + 4 + int(found[1])
    return data.endswith(b"0\r\n\r\n")


def _times_of(times_ns: "array[int]") -> Times | None:
    if not times_ns:
        return None
    ordered = sorted(times_ns)
    p50, p90, p99 = (ordered[int(share * (len(ordered) - 1))] / 1e6 for share in (0.5, 0.9, 0.99))
    return Times(p50=p50, p90=p90, p99=p99, highest=ordered[-1] / 1e6)


def _interval_timer(interval_ns: int) -> int:
    """A file that becomes readable at each interval: the waits of epoll are whole milliseconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    seconds, nanoseconds = divmod(interval_ns, 10**9)
    spec = struct.pack("4q", seconds, nanoseconds, seconds, nanoseconds)
    if fd < 0 or libc.timerfd_settime(fd, 0, spec, None) != 0:
        raise OSError(ctypes.get_errno(), "no timer can be made")
    return fd


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    work = msgspec.msgpack.decode(Path(job.work).read_bytes(), type=Work)
    sys.stdout.buffer.write(msgspec.json.encode(Load(job, work).run()))


if __name__ == "__main__":
    main()

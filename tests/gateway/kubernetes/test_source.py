"""How the source of Kubernetes endpoints lives with an API server that fails, in virtual time."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence

import pytest

from headrace.errors import SettingsError, UpstreamError
from headrace.gateway.discovery.entry import EndpointEntry
from headrace.gateway.discovery.kubernetes.client import VersionExpiredError
from headrace.gateway.discovery.kubernetes.source import KubernetesSource, kubernetes_source
from headrace.testing.fake_kubernetes import pod
from headrace.testing.fake_kubernetes_store import JsonObject
from headrace.testing.virtual_time import run_virtual

_LABELS = {"headrace.dev/model": "demo"}
_ENTRY = EndpointEntry(url="kube://default/pods")


def event(kind: str, name: str, *, last: int, version: int) -> bytes:
    one = pod(name, ip=f"10.0.0.{last}", labels=_LABELS)
    one["metadata"]["resourceVersion"] = str(version)
    return json.dumps({"type": kind, "object": one}).encode()


def page(*names: str, version: int, continue_token: str = "") -> bytes:
    items = [pod(name, ip=f"10.0.0.{number}", labels=_LABELS) for number, name in enumerate(names, start=1)]
    meta = {"resourceVersion": str(version)} | ({"continue": continue_token} if continue_token else {})
    return json.dumps({"metadata": meta, "items": items}).encode()


class ScriptedApi:
    """Answers as a test wrote it down; what it was asked, and when, is recorded."""

    def __init__(
        self, *, lists: Sequence[bytes | Exception] = (), watches: Sequence[Sequence[bytes | Exception] | None] = ()
    ) -> None:
        self.lists = deque(lists)
        self.watches = deque(watches)
        """Each as its events; None hangs. The last is repeated."""
        self.listed_at_s: list[float] = []
        self.watched: list[str] = []
        self.watched_at_s: list[float] = []
        self.num_open = 0
        self.is_closed = False

    async def list_page(self, *, continue_token: str) -> bytes:
        self.listed_at_s.append(asyncio.get_running_loop().time())
        answer = self.lists.popleft() if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, *, version: str, timeout_s: int) -> AsyncGenerator[bytes, None]:
        self.watched.append(version)
        self.watched_at_s.append(asyncio.get_running_loop().time())
        script = self.watches.popleft() if len(self.watches) > 1 else self.watches[0]
        self.num_open += 1
        try:
            for line in script or ():
                if isinstance(line, Exception):
                    raise line
                yield line
            if script is None:
                await asyncio.Event().wait()
            await asyncio.sleep(timeout_s)
        finally:
            self.num_open -= 1

    async def aclose(self) -> None:
        self.is_closed = True


async def follow(source: KubernetesSource, *, for_s: float) -> list[list[str]]:  # type: ignore[type-arg]
    """The sets that it gives within `for_s`, as URLs."""
    found: list[list[str]] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s), contextlib.aclosing(source.watch()) as sets:
            async for specs in sets:
                found.append([spec.address.host.removeprefix("10.0.0.") for spec in specs])  # noqa: PERF401 - cut off
    return found


def source_of(api: ScriptedApi) -> KubernetesSource:  # type: ignore[type-arg]
    source = kubernetes_source(_ENTRY, where="endpoint", api=api)
    assert isinstance(source, KubernetesSource)
    return source


def test_an_empty_cluster_is_told_too() -> None:
    api = ScriptedApi(lists=[page(version=5)], watches=[None])

    assert run_virtual(follow(source_of(api), for_s=1)) == [[]]


def test_pages_are_one_list_and_the_watch_begins_at_their_version() -> None:
    api = ScriptedApi(lists=[page("a", version=5, continue_token="more"), page("b", "c", version=5)], watches=[None])

    assert run_virtual(follow(source_of(api), for_s=1)) == [["1", "2"]]
    assert api.watched == ["5"]


def test_events_that_change_nothing_are_not_told() -> None:
    same = event("MODIFIED", "a", last=1, version=6)
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'
    api = ScriptedApi(lists=[page("a", version=5)], watches=[[same, bookmark], None])

    assert run_virtual(follow(source_of(api), for_s=300)) == [["1"]]
    assert api.watched == ["5", "9"]


def test_a_watch_that_ends_in_good_order_goes_on_at_once_from_its_last_version() -> None:
    api = ScriptedApi(lists=[page(version=5)], watches=[[event("ADDED", "a", last=1, version=7)], None])

    assert run_virtual(follow(source_of(api), for_s=300)) == [[], ["1"]]
    assert api.watched == ["5", "7"]
    assert len(api.listed_at_s) == 1
    assert 90 <= api.watched_at_s[1] <= 150


@pytest.mark.parametrize(
    "gone",
    [
        VersionExpiredError("410 Gone"),
        b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old resource version"}}',
    ],
)
def test_a_forgotten_version_is_listed_anew(gone: bytes | Exception) -> None:
    api = ScriptedApi(lists=[page("a", version=5), page("a", "b", version=50)], watches=[[gone], None])
    source = source_of(api)

    assert run_virtual(follow(source, for_s=60)) == [["1"], ["1", "2"]]
    assert api.watched == ["5", "50"]
    assert source.statistics().num_troubles == 0


def test_the_endpoints_known_stay_while_the_server_is_away() -> None:
    api = ScriptedApi(lists=[page("a", version=5)], watches=[[UpstreamError("connection refused")]])
    source = source_of(api)

    assert run_virtual(follow(source, for_s=600)) == [["1"]]
    statistics = source.statistics()
    assert (statistics.num_endpoints, statistics.trouble) == (1, "connection refused")
    assert statistics.num_troubles == len(api.watched)


def test_pauses_grow_to_half_a_minute_and_no_further() -> None:
    api = ScriptedApi(lists=[UpstreamError("connection refused")])

    run_virtual(follow(source_of(api), for_s=3600))

    pauses = [after - before for before, after in zip(api.listed_at_s, api.listed_at_s[1:], strict=False)]
    assert max(pauses) <= 30
    assert all(pause <= 0.5 * 2.0**number for number, pause in enumerate(pauses[:5], start=1))
    assert 3600 / 30 < len(pauses) < 3600 / 5


def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_circle() -> None:
    class Ending(ScriptedApi):
        async def watch(self, *, version: str, timeout_s: int) -> AsyncGenerator[bytes, None]:
            self.watched.append(version)
            for line in ():
                yield line

    api = Ending(lists=[page("a", version=5)])

    run_virtual(follow(source_of(api), for_s=600))

    assert len(api.watched) < 120


def test_trouble_is_over_when_the_server_answers_again() -> None:
    api = ScriptedApi(lists=[UpstreamError("down"), page("a", version=5)], watches=[None])
    source = source_of(api)

    assert run_virtual(follow(source, for_s=60)) == [["1"]]
    assert (source.statistics().trouble, source.statistics().num_troubles) == (None, 1)


def test_garbage_in_a_watch_is_trouble_and_not_the_end() -> None:
    api = ScriptedApi(
        lists=[page("a", version=5)], watches=[[b"<html>"], [event("ADDED", "b", last=2, version=6)], None]
    )

    assert run_virtual(follow(source_of(api), for_s=300)) == [["1"], ["1", "2"]]


def test_leaving_it_closes_the_watch_and_the_client() -> None:
    api = ScriptedApi(lists=[page("a", version=5)], watches=[None])

    run_virtual(follow(source_of(api), for_s=1))

    assert (api.num_open, api.is_closed) == (0, True)


def test_one_address_of_kv_events_for_all_pods_is_refused() -> None:
    entry = EndpointEntry(url="kube://default/pods", kv_events="tcp://10.0.0.1:5557")

    with pytest.raises(SettingsError, match=r"headrace\.dev/kv-events-port"):
        kubernetes_source(entry, where="endpoint", api=ScriptedApi())


def test_objects_that_are_refused_are_in_the_statistics() -> None:
    bad: JsonObject = pod("bad", labels=_LABELS | {"headrace.dev/port": "x"})
    listed = json.dumps({"metadata": {"resourceVersion": "5"}, "items": [bad]}).encode()
    source = source_of(ScriptedApi(lists=[listed], watches=[None]))

    assert run_virtual(follow(source, for_s=1)) == [[]]
    assert source.statistics().refused == ("default/bad: headrace.dev/port 'x' is no port; give 1 to 65535",)

"""Where endpoints come from: entries, files, names, and how several sources make one set."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.gateway.discovery.dns import DnsSource
from headrace.gateway.discovery.entry import EndpointEntry, parse_entry, spec_of
from headrace.gateway.discovery.file import SETTINGS_FILE, FileSource
from headrace.gateway.discovery.follow import ADMIN_API, Discovery
from headrace.gateway.discovery.merge import Merge
from headrace.gateway.discovery.source import EndpointSpec, Source, SourceStatistics
from headrace.gateway.discovery.sources import parse_entries, sources_of
from headrace.gateway.discovery.static import StaticSource
from headrace.gateway.upstream.address import parse_address
from headrace.testing.virtual_time import run_virtual

KEY = "sk-endpoint-secret"


def spec(url: str, *, origin: str = "test", weight: float = 1.0) -> EndpointSpec:
    return EndpointSpec(parse_address(url), origin=origin, weight=weight)


def urls(specs: Sequence[EndpointSpec]) -> list[str]:
    return [one.url for one in specs]


# entries


def test_an_entry_is_a_url_or_a_mapping_and_the_command_line_writes_mappings_as_json() -> None:
    mapping = {"url": "http://a:1", "weight": 2, "api_key": KEY, "models": ["m"], "kv_events": "tcp://a:5,tcp://a:6"}

    assert parse_entry("http://a:1", where="x") == EndpointEntry(url="http://a:1")
    assert parse_entry(mapping, where="x") == parse_entry(json.dumps(mapping), where="x")
    made = spec_of(parse_entry(mapping, where="x"), origin="file", where="x")
    assert (made.weight, made.api_key, made.models, made.origin) == (2.0, KEY, ("m",), "file")
    assert made.kv_events is not None
    assert made.kv_events.replay == "tcp://a:6"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "neither a URL nor a mapping"),
        ({"weight": 1}, "url"),
        ({"url": "http://a", "wieght": 1}, "wieght"),
        ({"url": "http://a", "weight": 0}, "weight"),
        ({"url": "http://a", "kv_events": "http://a:5"}, "kv_events"),
        ("{broken", "not JSON"),
    ],
)
def test_a_wrong_entry_is_refused_by_field(value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as raised:
        parse_entry(value, where="endpoint")
    assert raised.value.param == "endpoint"


@pytest.mark.parametrize("broken", [{"weight": -1}, {"api_key": KEY + "\r\nx: y"}, {"models": 3}, {"unknown": 1}])
def test_no_error_and_no_repr_shows_an_endpoints_key(broken: dict[str, object]) -> None:
    content = {"url": "http://a:1", "api_key": KEY} | broken
    with pytest.raises(SettingsError) as raised:
        parse_entry(content, where="endpoint")

    entry = parse_entry({"url": "http://a:1", "api_key": KEY}, where="endpoint")
    shown = raised.value.message + repr(entry) + repr(spec_of(entry, origin="o", where="x"))
    assert KEY not in shown


@pytest.mark.parametrize(
    "endpoint",
    [
        ("ftp://a",),
        ("http://a", "http://a/"),
        ("dns://a",),
        ("dns://a:80/path",),
        ("dns://a:80", "dns://a:80"),
        ("dns://a..b:80",),
        (f"dns://{'a' * 64}:80",),
        ("http://a b",),
        ("http://a/b\nc",),
        ("kube://x/nodes",),
    ],
)
def test_wrong_endpoints_stop_the_start(endpoint: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="endpoint"):
        parse_entries(endpoint)


# merging


def test_the_first_source_owns_an_endpoint_and_the_next_takes_it_over() -> None:
    merge = Merge(["api", "file"])
    merge.tell("file", [spec("http://a", origin="file"), spec("http://b", origin="file")])

    both = merge.tell("api", [spec("http://b", origin="api", weight=3.0)])
    after = merge.tell("api", [])

    assert [(one.url, one.origin) for one in both] == [("http://b", "api"), ("http://a", "file")]
    assert [(one.url, one.origin) for one in after] == [("http://a", "file"), ("http://b", "file")]


WORDS = st.lists(st.tuples(st.sampled_from("xyz"), st.lists(st.sampled_from("abcd"), unique=True)), max_size=12)


@given(WORDS)
def test_the_merged_set_is_that_of_the_last_words_whatever_came_before(words: list[tuple[str, list[str]]]) -> None:
    merge = Merge("xyz")
    last: dict[str, list[str]] = {}
    merged: tuple[EndpointSpec, ...] = ()
    for name, hosts in words:
        last[name] = hosts
        merged = merge.tell(name, [spec(f"http://{host}", origin=name) for host in hosts])

    hosts_named = {host for hosts in last.values() for host in hosts}
    owners = {host: next(name for name in "xyz" if host in last.get(name, ())) for host in hosts_named}
    assert {one.url: one.origin for one in merged} == {f"http://{host}": name for host, name in owners.items()}
    assert len(merged) == len({one.url for one in merged})


# files


def write(path: Path, content: object) -> None:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    write(path, ["http://a:1", {"url": "http://b:2", "weight": 4}])
    source = FileSource(path, interval_s=0.001)

    async with aclosing(source.watch()) as sets:
        first = await anext(sets)
        write(path, {"endpoints": ["http://b:2"]})
        async with asyncio.timeout(20):
            second = await anext(sets)

    assert [(one.url, one.weight) for one in first] == [("http://a:1", 1.0), ("http://b:2", 4.0)]
    assert urls(second) == ["http://b:2"]
    assert {one.origin for one in first} == {str(path)}


@pytest.mark.parametrize(
    "broken",
    [
        *["", "endpoints: {", "endpoints: 3", "- ftp://a", "[http://a, http://a]", "- dns://a:1", "- http://a/b c"],
        *["- 2024-99-99", "- !!int x", "- !!timestamp x", "- !!bool x", "[" * 2000 + "]" * 2000],
    ],
)
async def test_a_broken_file_keeps_the_last_good_list_and_says_so(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "endpoints.yaml"
    write(path, ["http://a:1"])
    source = FileSource(path, interval_s=1)

    write(path, broken)
    changed = [await source.look(), await source.look()]

    assert changed == [False, False]
    assert source.statistics().trouble
    assert source.statistics().num_endpoints == 1
    assert caplog.text.count("the endpoints stay as they were") == 1

    write(path, ["http://a:1"])
    assert not await source.look()
    assert source.statistics().trouble is None


async def test_a_file_that_is_gone_keeps_its_endpoints_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    write(path, ["http://a:1"])
    source = FileSource(path, interval_s=1)

    path.unlink()
    assert not await source.look()
    assert "cannot be read" in (source.statistics().trouble or "")
    write(path, ["http://a:1"])
    assert not await source.look()
    assert source.statistics() == SourceStatistics(num_endpoints=1, num_troubles=1)


async def test_a_list_that_is_empty_on_purpose_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    write(path, ["http://a:1"])
    source = FileSource(path, interval_s=1)
    write(path, "endpoints: []")

    assert await source.look()
    assert source.statistics().num_endpoints == 0


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        FileSource(tmp_path / "nowhere", interval_s=1)


async def test_the_list_in_a_settings_file_is_followed_there_and_finders_only_at_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "headrace.yaml"
    write(path, {"gateway": {"endpoint": ["http://a:1", "dns://x:1"], "port": 1}})
    source = FileSource(path, interval_s=1, keys=SETTINGS_FILE)

    write(path, {"gateway": {"endpoint": ["http://a:1", "http://b:1", "dns://x:1"], "port": 2}})
    assert await source.look()
    assert source.statistics() == SourceStatistics(num_endpoints=2)
    write(path, {"gateway": {"endpoint": ["http://a:1", "dns://y:1"]}})
    assert await source.look()
    assert "only at a restart" in (source.statistics().trouble or "")
    assert source.statistics().num_endpoints == 1


# names


def dns(url: str = "dns://engines:8000", **more: object) -> EndpointEntry:
    return parse_entry({"url": url} | more, where="endpoint")


async def test_a_name_stands_for_all_its_addresses_and_is_asked_again() -> None:
    answers = iter([["10.0.0.2", "10.0.0.1", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "fd00::7"]])
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return next(answers, ["10.0.0.1", "fd00::7"])

    source = DnsSource(dns(weight=2, api_key=KEY), interval_s=0.001, where="endpoint", resolve=resolve)
    async with asyncio.timeout(20), aclosing(source.watch()) as sets:
        first, second = await anext(sets), await anext(sets)

    assert urls(first) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert urls(second) == ["http://10.0.0.1:8000", "http://[fd00::7]:8000"]
    assert (first[0].weight, first[0].api_key, first[0].origin) == (2.0, KEY, "dns://engines:8000")
    assert asked[0] == ("engines", 8000)


@pytest.mark.parametrize("fault", [OSError("no such name"), []])
async def test_a_name_that_is_not_found_keeps_its_addresses(fault: OSError | list[str]) -> None:
    answers: list[object] = [["10.0.0.1"], fault, fault, ["10.0.0.9"]]

    def resolve(host: str, port: int) -> Sequence[str]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        assert isinstance(answer, list)
        return answer

    source = DnsSource(dns(), interval_s=0.001, where="endpoint", resolve=resolve)
    async with asyncio.timeout(20), aclosing(source.watch()) as sets:
        await anext(sets)
        second = await anext(sets)

    assert urls(second) == ["http://10.0.0.9:8000"]
    assert source.statistics() == SourceStatistics(num_endpoints=1, num_troubles=2)


async def test_a_resolver_that_hangs_holds_up_nobody_and_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gateway.discovery.dns._TIMEOUT_S", 0.01)
    go_on = threading.Event()
    num_asked = 0

    def resolve(host: str, port: int) -> Sequence[str]:
        nonlocal num_asked
        num_asked += 1
        assert go_on.wait(20)
        return ["10.0.0.1"]

    source = DnsSource(dns(), interval_s=0.001, where="endpoint", resolve=resolve)
    async with asyncio.timeout(20), aclosing(source.watch()) as sets:
        waiting = asyncio.ensure_future(anext(sets))
        while source.statistics().num_troubles < 2:
            await asyncio.sleep(0.001)
        assert "no answer" in (source.statistics().trouble or "")
        assert num_asked == 1
        go_on.set()
        assert urls(await waiting) == ["http://10.0.0.1:8000"]


def test_a_name_takes_no_kv_events_socket_since_it_may_have_many_addresses() -> None:
    with pytest.raises(SettingsError, match="kv_events"):
        DnsSource(dns(kv_events="tcp://a:5"), interval_s=1, where="endpoint")


# all together


class ToldSource:
    """Says what a test says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sets: asyncio.Queue[tuple[EndpointSpec, ...]] = asyncio.Queue()
        self.has_ended = False

    async def watch(self) -> AsyncIterator[tuple[EndpointSpec, ...]]:
        try:
            while True:
                yield await self.sets.get()
        finally:
            self.has_ended = True

    def statistics(self) -> SourceStatistics:
        return SourceStatistics(num_endpoints=0)


def test_a_silent_source_delays_the_start_by_its_time_out_and_no_longer() -> None:
    async def scenario() -> tuple[float, list[list[str]], bool]:
        changes: list[list[str]] = []
        silent = ToldSource("silent")
        sources: list[Source] = [StaticSource([spec("http://a")], name="static"), silent]
        discovery = Discovery(sources, on_change=lambda specs: changes.append(urls(specs)))
        await discovery.start(timeout_s=2.0)
        started_s = asyncio.get_running_loop().time()
        silent.sets.put_nowait((spec("http://b"),))
        while len(changes) < 2:
            await asyncio.sleep(0)
        await discovery.aclose()
        return started_s, changes, silent.has_ended

    started_s, changes, has_ended = run_virtual(scenario())

    assert started_s == 2.0
    assert changes == [["http://a"], ["http://a", "http://b"]]
    assert has_ended


def test_what_the_admin_api_says_goes_before_all_sources() -> None:
    async def scenario() -> tuple[EndpointSpec, ...]:
        seen: list[tuple[EndpointSpec, ...]] = []
        discovery = Discovery([StaticSource([spec("http://a", origin="s")], name="s")], on_change=seen.append)
        await discovery.start(timeout_s=1.0)
        discovery.tell(ADMIN_API, [spec("http://a", origin=ADMIN_API)])
        await discovery.aclose()
        return seen[-1]

    (one,) = run_virtual(scenario())
    assert one.origin == ADMIN_API


def test_each_scheme_has_its_source(tmp_path: Path) -> None:
    write(tmp_path / "f", ["http://c:1"])
    sources = sources_of(
        ("http://a:1", "dns://b:1"), endpoints_file=str(tmp_path / "f"), settings_file=None, interval_s=1
    )

    assert [type(one).__name__ for one in sources] == ["StaticSource", "FileSource", "DnsSource"]

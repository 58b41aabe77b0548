"""Our copy of a cluster's objects is what a list would give, whatever was told before."""

import contextlib
import json
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UpstreamProtocolError
from headrace.gateway.discovery.kubernetes.objects import Bookmark, Change, Decoder, Pod, WatchError
from headrace.gateway.discovery.kubernetes.replica import Replica
from headrace.gateway.discovery.kubernetes.translate import Rules, endpoints_of_pod
from headrace.testing.fake_kubernetes import PODS, pod, ready_condition
from headrace.testing.fake_kubernetes_store import JsonObject, Selection, Store, StoreError, matches

_TRANSLATE = partial(endpoints_of_pod, rules=Rules(origin="", takes_all=True))
_SELECTED = Selection(kind=PODS, label_selector="app=vllm")
_DECODER = Decoder(Pod)

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_ACTIONS = st.one_of(
    st.tuples(st.just("create"), _NAMES, st.integers(1, 4)),
    st.tuples(st.just("ready"), _NAMES, st.booleans()),
    st.tuples(st.just("label"), _NAMES, st.sampled_from(["vllm", "other", None])),
    st.tuples(st.just("port"), _NAMES, st.sampled_from(["9000", "none at all"])),
    st.tuples(st.just("delete"), _NAMES, st.sampled_from([0, 30])),
    st.tuples(st.just("tell"), st.none(), st.none()),
    st.tuples(st.just("list"), st.none(), st.none()),
)


def listed(store: Store) -> Replica[Pod]:
    replica: Replica[Pod] = Replica(_TRANSLATE)
    relist(replica, store)
    return replica


def relist(replica: Replica[Pod], store: Store) -> None:
    pods = [msgspec.json.decode(json.dumps(one), type=Pod) for one in store.select(_SELECTED)]
    replica.replace(pods, version=str(store.version))


def tell(replica: Replica[Pod], store: Store) -> None:
    """All that a watch from the replica's version tells."""
    for change in store.changes_after(int(replica.version or 0)):
        if (event := change.event(_SELECTED)) is not None:
            read = _DECODER.event(json.dumps(event).encode())
            assert isinstance(read, Change)
            replica.apply(read)
    replica.apply(Bookmark(str(store.version)))


def act(store: Store, action: str, name: str, value: object) -> None:
    with contextlib.suppress(StoreError):  # there is one, or none
        if action == "create":
            store.create(PODS, pod(name, ip=f"10.0.0.{value}", labels={"app": "vllm"}))
        elif action == "ready":
            store.patch(PODS, name, ready_condition(bool(value)))
        elif action == "label":
            store.patch(PODS, name, {"metadata": {"labels": {"app": value}}})
        elif action == "port":
            store.patch(PODS, name, {"metadata": {"labels": {"headrace.dev/port": value}}})
        else:
            assert isinstance(value, int)
            store.delete(PODS, name, grace_period_s=value)


@given(st.lists(_ACTIONS, max_size=40))
def test_any_sequence_of_lists_and_events_gives_what_the_last_list_gives(
    actions: list[tuple[str, str, object]],
) -> None:
    store = Store()
    replica = listed(store)
    for action, name, value in actions:
        if action == "tell":
            tell(replica, store)
        elif action == "list":
            relist(replica, store)
        else:
            act(store, action, name, value)
    tell(replica, store)

    fresh = listed(store)
    assert replica.endpoints() == fresh.endpoints()
    assert (replica.refused, len(replica), replica.version) == (fresh.refused, len(fresh), fresh.version)


def test_an_object_that_cannot_be_read_is_left_out_and_named() -> None:
    store = Store()
    store.create(PODS, pod("good", labels={"app": "vllm"}))
    store.create(PODS, pod("bad", ip="10.0.0.2", labels={"app": "vllm", "headrace.dev/port": "x"}))

    replica = listed(store)

    assert [spec.url for spec in replica.endpoints()] == ["http://10.0.0.1:8000"]
    assert replica.refused == {"default/bad": "headrace.dev/port 'x' is no port; give 1 to 65535"}


def test_an_expired_version_is_told_from_other_errors() -> None:
    expired = _DECODER.event(b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old"}}')
    other = _DECODER.event(b'{"type":"ERROR","object":{"code":500,"reason":"InternalError","message":"etcd"}}')

    assert isinstance(expired, WatchError)
    assert isinstance(other, WatchError)
    assert (expired.status.is_expired, other.status.is_expired) == (True, False)


def test_a_kind_of_event_that_is_not_known_means_nothing() -> None:
    assert _DECODER.event(b'{"type":"CONTINUED","object":{}}') is None


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"type":"ADDED"}', b'{"type":"ADDED","object":[]}', b"\xff"])
def test_what_is_no_event_is_the_servers_fault(line: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        _DECODER.event(line)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_the_servers_fault(line: bytes) -> None:
    with contextlib.suppress(UpstreamProtocolError):
        assert _DECODER.event(line) is None


@pytest.mark.parametrize(
    ("selector", "labels", "matched"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b"}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a notin (b,c),d", {"a": "c", "d": ""}, False),
        ("a,!b", {"a": "1"}, True),
        ("!a", {"a": "1"}, False),
    ],
)
def test_the_fake_reads_selectors_as_the_api_does(selector: str, labels: dict[str, str], matched: bool) -> None:
    assert matches(selector, labels) is matched


def test_the_fake_tells_an_object_that_left_the_selector_as_deleted() -> None:
    store = Store()
    store.create(PODS, pod("a", labels={"app": "vllm"}))
    before = store.version
    store.patch(PODS, "a", {"metadata": {"labels": {"app": "other"}}})

    (change,) = store.changes_after(before)
    event: JsonObject | None = change.event(_SELECTED)

    assert event is not None
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("DELETED", str(store.version))

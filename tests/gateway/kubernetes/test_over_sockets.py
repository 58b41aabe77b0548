"""The source of Kubernetes endpoints against an API server on a socket, through the real client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.gateway.discovery.entry import EndpointEntry
from headrace.gateway.discovery.kubernetes.source import KubernetesSource, kubernetes_source
from headrace.gateway.discovery.source import EndpointSpec
from headrace.testing.fake_kubernetes import ENDPOINT_SLICES, PODS, FakeKubernetes, endpoint_slice, pod, ready_condition
from headrace.testing.fake_upstream import answers, hangs

pytestmark = pytest.mark.integration
_DEADLINE_S = 20.0
_LABELS = {"model.aibrix.ai/name": "demo"}


class Follower:
    """Follows a source in a task, and waits for what it should find."""

    def __init__(self, source: KubernetesSource) -> None:  # type: ignore[type-arg]
        self.source = source
        self.sets: list[tuple[EndpointSpec, ...]] = []
        self._changed = asyncio.Event()

    @property
    def urls(self) -> list[str]:
        return [spec.url for spec in self.sets[-1]] if self.sets else []

    async def run(self) -> None:
        async with contextlib.aclosing(self.source.watch()) as sets:
            async for specs in sets:
                self.sets.append(specs)
                self._changed.set()

    async def finds(self, *urls: str) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            while not self.sets or self.urls != list(urls):
                self._changed.clear()
                await self._changed.wait()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def following(
    cluster: FakeKubernetes, tmp_path: Path, *, what: str = "default/pods", query: str = "", **fields: object
) -> AsyncIterator[Follower]:
    path = tmp_path / "kubeconfig"
    path.write_text(cluster.kubeconfig())
    entry = EndpointEntry(url=f"kube://{what}?kubeconfig={path}{query}", **fields)  # type: ignore[arg-type]
    source = kubernetes_source(entry, where="endpoint", first_pause_s=0.01)
    assert isinstance(source, KubernetesSource)
    follower = Follower(source)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(follower.run())
        yield follower
        task.cancel()


async def test_pods_come_and_go(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", ip="10.0.0.1", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            cluster.create(PODS, pod("b", ip="10.0.0.2", labels=_LABELS, is_ready=False))
            cluster.patch(PODS, "b", ready_condition(True))
            await found.finds("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            cluster.delete(PODS, "a")
            await found.finds("http://10.0.0.2:8000")
            cluster.patch(PODS, "b", ready_condition(False))
            await found.finds()
        await until(lambda: cluster.num_watches == 0 and cluster.upstream.num_open == 0)


async def test_a_label_that_changes_takes_a_pod_in_and_out(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels={"app": "vllm"}))
        cluster.create(PODS, pod("b", ip="10.0.0.2", labels={"app": "other"}))
        async with following(cluster, tmp_path, query="&selector=app%3Dvllm") as found:
            await found.finds("http://10.0.0.1:8000")
            cluster.patch(PODS, "b", {"metadata": {"labels": {"app": "vllm"}}})
            await found.finds("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            cluster.patch(PODS, "a", {"metadata": {"labels": {"app": None}}})
            await found.finds("http://10.0.0.2:8000")


async def test_a_large_cluster_is_listed_in_pages(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        for number in range(300):
            cluster.create(PODS, pod(f"p{number}", ip=f"10.0.{number // 250}.{number % 250}", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await until(lambda: bool(found.sets))
        assert len(found.urls) == 300
        lists = [one.target for one in cluster.received if "watch=" not in one.target]
        assert ["continue=" in target for target in lists] == [False, True]


@pytest.mark.parametrize("expires_by_status", [False, True], ids=["as an event", "as a status"])
async def test_a_version_that_the_server_forgot_is_listed_anew(tmp_path: Path, expires_by_status: bool) -> None:
    async with FakeKubernetes() as cluster:
        cluster.expires_by_status = expires_by_status
        cluster.create(PODS, pod("a", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            await until(lambda: cluster.num_watches == 1)
            cluster.store.create(PODS, pod("b", ip="10.0.0.2", labels=_LABELS))  # told to nobody
            cluster.store.compact()
            cluster.cut_watches()
            await found.finds("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            assert found.source.statistics().num_lists == 2


async def test_a_watch_that_is_cut_in_the_middle_of_an_event_goes_on_behind_the_last_whole_one(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            await until(lambda: cluster.num_watches == 1)
            cluster.cut_watches(after=b'{"type":"DELETED","object":{"metadata":{"na')
            cluster.create(PODS, pod("b", ip="10.0.0.2", labels=_LABELS))
            await found.finds("http://10.0.0.1:8000", "http://10.0.0.2:8000")
            assert found.source.statistics().num_lists == 1


async def test_a_bookmark_saves_a_list_after_the_server_forgot(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            await until(lambda: cluster.num_watches == 1)
            for number in range(3):
                cluster.create(PODS, pod(f"other{number}"))
            cluster.bookmark()
            version = str(cluster.store.version)
            await until(lambda: found.source.version == version)
            cluster.store.compact()
            cluster.cut_watches()
            await until(lambda: found.source.statistics().num_watches == 2)
            cluster.delete(PODS, "a")
            await found.finds()
            assert found.source.statistics().num_lists == 1


async def test_a_server_that_fails_at_first_is_asked_again(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        cluster.faults.extend([answers(500, body=b"oops"), answers(429)])
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            assert found.source.statistics().num_troubles == 2


async def test_a_server_that_is_gone_and_comes_back_is_followed_on(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            await cluster.upstream.stop()
            await until(lambda: found.source.statistics().trouble is not None)
            assert found.urls == ["http://10.0.0.1:8000"]
            cluster.create(PODS, pod("b", ip="10.0.0.2", labels=_LABELS))
            await cluster.upstream.start()
            await found.finds("http://10.0.0.1:8000", "http://10.0.0.2:8000")


async def test_missing_rights_are_told_with_what_is_needed(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.forbidden.add("pods")
        async with following(cluster, tmp_path) as found:
            await until(lambda: found.source.statistics().trouble is not None)
            assert "403 Forbidden" in str(found.source.statistics().trouble)
            assert "may this account list and watch pods?" in str(found.source.statistics().trouble)


async def test_credentials_are_read_anew_when_they_are_refused(tmp_path: Path) -> None:
    async with FakeKubernetes(token="old") as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        async with following(cluster, tmp_path) as found:
            await found.finds("http://10.0.0.1:8000")
            await until(lambda: cluster.num_watches == 1)
            cluster.token = "new"
            cluster.cut_watches()
            await until(lambda: "401" in str(found.source.statistics().trouble))
            (tmp_path / "kubeconfig").write_text(cluster.kubeconfig())
            cluster.delete(PODS, "a")
            await found.finds()


async def test_a_kubeconfig_that_is_none_is_trouble_until_it_is_mended(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        good, cluster.kubeconfig = cluster.kubeconfig(), lambda: "[]"  # type: ignore[method-assign,misc]
        async with following(cluster, tmp_path) as found:
            await until(lambda: found.source.statistics().trouble is not None)
            (tmp_path / "kubeconfig").write_text(good)
            await found.finds("http://10.0.0.1:8000")


async def test_the_endpoints_of_a_service_come_and_go(tmp_path: Path) -> None:
    first = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    async with FakeKubernetes() as cluster:
        cluster.create(ENDPOINT_SLICES, endpoint_slice("engines-1", service="engines", endpoints=[first]))
        cluster.create(ENDPOINT_SLICES, endpoint_slice("others-1", service="others", endpoints=[first]))
        async with following(cluster, tmp_path, what="default/services/engines", api_key="k") as found:
            await found.finds("http://10.0.0.1:8000")
            assert found.sets[-1][0].api_key == "k"
            second = {"addresses": ["fd00::2"], "conditions": {"ready": True}}
            cluster.create(
                ENDPOINT_SLICES,
                endpoint_slice("engines-2", service="engines", endpoints=[second], address_type="IPv6"),
            )
            await found.finds("http://10.0.0.1:8000", "http://[fd00::2]:8000")
            cluster.delete(ENDPOINT_SLICES, "engines-1")
            await found.finds("http://[fd00::2]:8000")


async def test_leaving_while_the_server_hangs_leaves_nothing_open(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.faults.append(hangs)
        async with following(cluster, tmp_path):
            await until(lambda: cluster.upstream.num_running == 1)
        await until(lambda: cluster.upstream.num_open == 0)

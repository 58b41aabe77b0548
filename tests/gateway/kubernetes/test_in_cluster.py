"""A gateway that runs in a pod: its service account's token and certificate, and requests that go to the pods found."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from headrace.gateway.discovery.kubernetes.client import KubernetesClient
from headrace.gateway.discovery.kubernetes.target import parse_target
from headrace.testing.fake_kubernetes import PODS, FakeKubernetes, pod
from headrace.testing.fake_upstream import FakeUpstream
from tests.gateway.kubernetes.test_over_sockets import until
from tests.gateway.support import chat_request, exchange, running_gateway

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def behind_tls(cluster: FakeKubernetes, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port on which `cluster` answers over TLS."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", cluster.upstream.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, inner_writer))
            group.create_task(copy(inner_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_pod_asks_with_its_service_account(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("engines\n")

    async with FakeKubernetes(token="secret") as cluster, behind_tls(cluster, context) as port:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        client = KubernetesClient(parse_target("kube:///pods"), service_account=tmp_path, environment=environment)
        listed = await client.list_page(continue_token="")
        await client.aclose()
        await until(lambda: cluster.upstream.num_open == 0)

    assert b'"PodList"' in listed
    assert cluster.received[0].target.startswith("/api/v1/namespaces/engines/pods?")


async def test_requests_go_to_the_pods_that_are_there(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster, FakeUpstream() as first, FakeUpstream() as second:
        config = tmp_path / "kubeconfig"
        config.write_text(cluster.kubeconfig())
        labels = {"model.aibrix.ai/name": "demo", "model.aibrix.ai/engine": "vllm"}
        cluster.create(PODS, pod("first", ip="127.0.0.1", labels=labels | {"model.aibrix.ai/port": str(first.port)}))
        async with running_gateway(
            endpoint=(f"kube://default/pods?kubeconfig={config}",), policy="round_robin", health_interval_s=0.05
        ) as gateway:
            await until(lambda: gateway.fleet.num_healthy == 1)
            assert (await exchange(gateway, chat_request())).status == 200

            cluster.create(
                PODS, pod("second", ip="127.0.0.1", labels=labels | {"model.aibrix.ai/port": str(second.port)})
            )
            await until(lambda: gateway.fleet.num_healthy == 2)
            cluster.delete(PODS, "first")
            await until(lambda: [one.name for one in gateway.fleet.endpoints] == [second.url])
            assert (await exchange(gateway, chat_request())).status == 200

        num_chats = [sum(one.method == "POST" for one in upstream.received) for upstream in (first, second)]
        assert num_chats == [1, 1]

"""kubectl reads and changes the fake cluster, so that what our client is tested against is what others take for one."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from headrace.testing.fake_kubernetes import PODS, FakeKubernetes, pod
from tests.gateway.kubernetes.test_over_sockets import following

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here"),
]
_LABELS = {"model.aibrix.ai/name": "demo"}
_DEADLINE_S = 40.0


class Kubectl:
    """The program, with a configuration and a cache of its own."""

    def __init__(self, cluster: FakeKubernetes, directory: Path) -> None:
        self._config = directory / "kubectl-config"
        self._config.write_text(cluster.kubeconfig())
        self._cache = directory / "kubectl-cache"

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "kubectl",
            f"--kubeconfig={self._config}",
            f"--cache-dir={self._cache}",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str) -> str:
        """What it prints; it must succeed."""
        process = await self.start(*arguments)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()
        return output.decode()


async def test_kubectl_lists_by_selector(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        cluster.create(PODS, pod("b", labels={"app": "other"}))
        kubectl = Kubectl(cluster, tmp_path)

        table = await kubectl.run("get", "pods", "-l", "model.aibrix.ai/name=demo")
        listed = json.loads(await kubectl.run("get", "endpointslices,pods", "-o", "json"))

    assert [line.split()[0] for line in table.splitlines()] == ["NAME", "a"]
    assert [one["metadata"]["name"] for one in listed["items"]] == ["a", "b"]


async def test_what_kubectl_does_is_what_our_source_sees(tmp_path: Path) -> None:
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod("a", labels=_LABELS)))
    async with FakeKubernetes() as cluster:
        kubectl = Kubectl(cluster, tmp_path)
        async with following(cluster, tmp_path) as found:
            await found.finds()
            await kubectl.run("create", "--validate=false", "-f", str(manifest))
            await found.finds("http://10.0.0.1:8000")
            await kubectl.run("label", "pod", "a", "headrace.dev/port=9000")
            await found.finds("http://10.0.0.1:9000")
            await kubectl.run("annotate", "pod", "a", "headrace.dev/drain=true")
            await found.finds()
            await kubectl.run("annotate", "pod", "a", "headrace.dev/drain-")
            await found.finds("http://10.0.0.1:9000")
            await kubectl.run("delete", "pod", "a", "--wait=false")
            await found.finds()


async def test_kubectl_follows_a_watch(tmp_path: Path) -> None:
    async with FakeKubernetes() as cluster:
        cluster.create(PODS, pod("a", labels=_LABELS))
        process = await Kubectl(cluster, tmp_path).start(
            "get", "pods", "--watch", "--output-watch-events", "--no-headers"
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_DEADLINE_S):
                first = await process.stdout.readline()
                cluster.delete(PODS, "a", grace_period_s=0)
                second = await process.stdout.readline()
        finally:
            process.kill()
            await process.wait()
    assert (first.split()[:2], second.split()[:2]) == ([b"ADDED", b"a"], [b"DELETED", b"a"])

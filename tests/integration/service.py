"""The whole path as separate processes: two engine servers with the demo model and the gateway in front of them."""

from dataclasses import dataclass
from pathlib import Path

import httpx

from headrace.cli.fleet import Child, Fleet
from headrace.ready_file import Address

DEMO_MODEL = Path(__file__).parents[2] / "models" / "demo"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running gateway and its engines."""

    gateway: Address
    engines: tuple[Child, ...]

    @property
    def url(self) -> str:
        return self.gateway.url

    async def in_flight(self) -> int:
        """Requests that the gateway counts as being at an endpoint."""
        async with httpx.AsyncClient() as client:
            state = (await client.get(f"{self.gateway.admin_url}/state")).json()
        return sum(endpoint["num_in_flight"] for endpoint in state["endpoints"])

    async def running(self) -> float:
        """Requests that the engines which still live run or queue."""
        total = 0.0
        async with httpx.AsyncClient() as client:
            for engine in self.engines:
                if engine.process.poll() is None and engine.address:
                    metrics = (await client.get(f"{engine.address.url}/metrics")).text
                    total += sum(
                        float(line.rsplit(" ", 1)[1])
                        for line in metrics.splitlines()
                        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))
                    )
        return total


def start_service(fleet: Fleet, *gateway_flags: str) -> Service:
    arguments = ["serve", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", "0", "--cpu-threads", "1"]
    engines = [fleet.start(f"engine-{number}", arguments) for number in (1, 2)]
    addresses = fleet.wait_ready(engines, timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
    endpoints = [argument for address in addresses for argument in ("--endpoint", address.url)]
    gateway = fleet.start("gateway", ["gateway", "--port", "0", "--admin-port", "0", *endpoints, *gateway_flags])
    (address,) = fleet.wait_ready([gateway], timeout_s=START_TIMEOUT_S, on_ready=lambda _: None)
    return Service(gateway=address, engines=tuple(engines))

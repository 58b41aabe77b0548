"""Settings files on the pages are read as a command reads them, and a gateway runs with what they say."""

import argparse
import asyncio
from pathlib import Path

import pytest

from headrace.cli.gateway import COMPONENTS
from headrace.cli.launch import Sources
from headrace.gateway.app import Gateway
from headrace.gateway.settings import GatewaySettings
from headrace.testing.fake_upstream import FakeUpstream
from tests.docs.blocks import Block, blocks

_ON_A_FREE_PORT = {
    "HEADRACE_GATEWAY_PORT": "0",
    "HEADRACE_GATEWAY_ADMIN_PORT": "none",
    "HEADRACE_GATEWAY_HEALTH_TIMEOUT_S": "20s",
}


def settings_in(text: str, folder: Path) -> GatewaySettings:
    path = folder / "settings.yaml"
    path.write_text(text)
    sources = Sources(argparse.Namespace(config=str(path)), environment=_ON_A_FREE_PORT)
    for section, kind in COMPONENTS.items():
        sources.resolve(kind, section=section)
    return sources.resolve(GatewaySettings, section="gateway").settings


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.name)
def test_a_settings_file_of_a_page_is_taken(block: Block, tmp_path: Path) -> None:
    assert settings_in(block.text, tmp_path).endpoint


@pytest.mark.integration
async def test_a_gateway_finds_the_endpoints_that_a_page_lists(tmp_path: Path) -> None:
    (block,) = (one for one in blocks("yaml") if one.page == "docs/gateway.md")
    async with FakeUpstream() as first, FakeUpstream() as second, FakeUpstream() as third:
        places = {
            "http://10.0.0.1:8000": first.url,
            "http://10.0.0.2:8000": second.url,
            "dns://engines.example:8000": f"dns://127.0.0.1:{third.port}",
        }
        text = block.text
        for written, here in places.items():
            assert written in text
            text = text.replace(written, here)
        async with Gateway(settings_in(text, tmp_path)) as gateway:
            async with asyncio.timeout(20):
                while len(ready := [one for one in gateway.fleet.endpoints if one.is_ready]) < len(places):
                    await asyncio.sleep(0.02)

    assert {one.name: one.weight for one in ready} == {first.url: 1.0, second.url: 2.0, third.url: 1.0}
    assert {probe.header("authorization") for probe in second.probes} == {"Bearer sk-..."}
    assert {probe.header("authorization") for probe in first.probes} == {None}

"""The dashboard page in a real browser: what it shows, on a phone, in the dark, by keyboard, and when the line breaks.

Runs where playwright and a Chromium are. SCREENSHOTS_DIR names a directory that keeps what was seen."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from headrace.aio.tasks import TaskOwner
from headrace.gateway.admin.broadcast import Broadcast
from headrace.gateway.admin.server import AdminServer, admin_app
from headrace.gateway.admin.snapshot import Snapshot
from tests.gateway.sample_snapshot import decision, endpoint, snapshot

playwright = pytest.importorskip("playwright.async_api", reason="needs playwright")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,  # a browser starts for each
    pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium on the PATH"),
]

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
TIMEOUT_MS = 20_000


@dataclass
class Served:
    """A dashboard on a port of its own, fed by the test."""

    port: int
    snapshots: Broadcast

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def publish(self, state: Snapshot) -> None:
        self.snapshots.publish(msgspec.json.encode(state))


@asynccontextmanager
async def serving(state: Snapshot | None = None, *, port: int = 0, max_listeners: int = 4) -> AsyncIterator[Served]:
    snapshots = Broadcast(max_listeners=max_listeners)
    app = admin_app(expose_metrics=lambda: b"", health=lambda: (200, b"{}"), snapshots=snapshots)
    owner = TaskOwner("test admin")
    server = AdminServer(app, owner=owner)
    served = Served(server.start(host="127.0.0.1", port=port), snapshots)
    served.publish(state or snapshot())
    try:
        yield served
    finally:
        snapshots.close()
        await server.aclose()
        await owner.aclose()


@asynccontextmanager
async def browsing(*, viewport: dict[str, int] = DESK, dark: bool = False) -> AsyncIterator["playwright.Page"]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = await browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")
        page = await context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.extend(_foreign(request.url)))
        try:
            yield page
            assert problems == []
        finally:
            await browser.close()


def _foreign(url: str) -> list[str]:
    return [] if url.startswith(("http://127.0.0.1", "data:")) else [f"asks {url}"]


async def keep(page: "playwright.Page", name: str) -> None:
    """A test artefact, for people to look at."""
    if directory := os.environ.get("SCREENSHOTS_DIR"):
        await page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)


async def is_live(page: "playwright.Page", *, timeout_ms: float = TIMEOUT_MS) -> None:
    await playwright.expect(page.locator("#link")).to_have_text("live", timeout=timeout_ms)


@pytest.mark.parametrize(("viewport", "name"), [(DESK, "desk"), (PHONE, "phone")])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_everything_is_shown_and_nothing_is_wider_than_the_screen(
    viewport: dict[str, int], name: str, dark: bool
) -> None:
    async with serving() as served, browsing(viewport=viewport, dark=dark) as page:
        await page.goto(served.url)
        await is_live(page)
        await keep(page, f"{name}-{'dark' if dark else 'light'}")

        text = await page.inner_text("body")
        widest = await page.evaluate("document.documentElement.scrollWidth")
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    for shown in (
        "2 of 3 endpoints healthy",
        "no answer to a probe within 2 s",
        "spill: holds 0 tokens",
        "support-bot",
        "182.40",
        "evals <nightly>",
        "Redis does not answer",
        "in place",
        "99.9 %",
        "31.0 MiB",
        "71.3 %",
        "0.62 ms",
        "upstream timeout",
    ):
        assert shown in text
    assert widest <= viewport["width"]
    assert (sum(int(part) for part in ground[4:-1].split(",")) < 3 * 64) is dark


async def test_a_new_state_is_shown_as_it_comes_and_kept_while_paused() -> None:
    async with serving() as served, browsing() as page:
        await page.goto(served.url)
        await is_live(page)
        served.publish(snapshot(endpoints=[endpoint(1)], decisions=[decision(1, reason="holds it all")]))
        await page.wait_for_selector("text=1 of 1 endpoints healthy")
        assert await page.locator("#endpoints tbody tr").count() == 1
        await page.click("#pause")
        assert await page.get_attribute("#pause", "aria-pressed") == "true"
        served.publish(snapshot(endpoints=[]))
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while await page.evaluate("latest.endpoints.length"):
                await asyncio.sleep(0.02)
        assert await page.locator("text=1 of 1 endpoints healthy").count() == 1
        await page.click("#pause")
        await page.wait_for_selector("text=0 of 0 endpoints healthy")


async def test_a_gateway_that_has_seen_nothing_yet_says_so() -> None:
    empty = snapshot(parity=[], decisions=[], hit_ratio=None, loop_lag_ms_history=[0.1])
    empty.admission.keys = []
    empty.tokenization.contents = []
    async with serving(empty) as served, browsing() as page:
        await page.goto(served.url)
        await is_live(page)

        text = await page.inner_text("body")
    for shown in ("No request yet.", "Nothing used yet.", "Nothing compared yet.", "Nothing encoded yet."):
        assert shown in text


async def test_the_keyboard_reaches_everything_in_order() -> None:
    async with serving() as served, browsing() as page:
        await page.goto(served.url)
        await is_live(page)
        reached = []
        for _ in range(9):
            await page.keyboard.press("Tab")
            reached.append(
                await page.evaluate(
                    "(document.activeElement.getAttribute('aria-labelledby') || document.activeElement.id "
                    "|| document.activeElement.getAttribute('href'))"
                )
            )
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert reached == [
        "#main", "pause", "h-endpoints", "h-tokens", "h-parity", "h-keys", "h-decisions", "/state", "/metrics",
    ]  # fmt: skip
    assert outline == "solid"


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
async def test_tables_are_tables_to_a_screen_reader(viewport: dict[str, int]) -> None:
    async with serving() as served, browsing(viewport=viewport) as page:
        await page.goto(served.url)
        await is_live(page)

        table = page.get_by_role("table", name="Endpoints: state, load and cache")
        rows, headers = table.get_by_role("row"), table.get_by_role("columnheader")
        assert await rows.count() == 1 + 3
        assert await headers.count() == 9
        assert await rows.nth(1).get_by_role("cell").count() == 9


async def test_a_lost_connection_is_told_and_mends_by_itself() -> None:
    async with browsing() as page:
        async with serving() as served:
            await page.goto(served.url)
            await is_live(page)
        await page.wait_for_selector("body.stale")
        assert "trying again" in await page.inner_text("#link")
        async with serving(snapshot(endpoints=[endpoint(1)]), port=served.port):
            await page.wait_for_selector("text=1 of 1 endpoints healthy", timeout=3 * TIMEOUT_MS)
            await is_live(page, timeout_ms=3 * TIMEOUT_MS)


async def test_a_refused_listener_asks_again() -> None:
    async with serving(max_listeners=1) as served, browsing() as page:
        values = served.snapshots.listen()
        await anext(values)
        await page.goto(served.url)
        await page.wait_for_selector("body.stale")
        await values.aclose()
        await is_live(page, timeout_ms=3 * TIMEOUT_MS)

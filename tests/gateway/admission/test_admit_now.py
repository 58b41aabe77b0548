"""What is admitted without waiting is admitted as by `admit`, and what must wait is left to it."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, InvalidRequestError, PermissionDeniedError
from headrace.gateway.admission.bill import Bill
from headrace.gateway.admission.budget import Budget
from headrace.gateway.admission.charge import hold_of
from headrace.gateway.admission.control import Admission
from headrace.gateway.admission.gate import Place
from headrace.gateway.admission.keys import ApiKey
from headrace.gateway.admission.limits import Hold, KeyLimits, Levels
from headrace.gateway.admission.prices import Price
from headrace.gateway.admission.refusals import LimitError, limit_headers, limit_lines
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.admission.state import Grant
from headrace.gateway.admission.ticket import Ticket
from headrace.gateway.endpoints.endpoint import ModelCard, ServedModel
from headrace.gateway.http.head import lines_of
from headrace.gateway.http.message import Request, ResponseHead
from headrace.gateway.identify import Call, identify
from headrace.gateway.prompt.tokens import PromptCount
from headrace.testing.virtual_time import run_virtual

PROMPT = PromptCount(total=100, longest=100)
LIMITS = KeyLimits(
    requests_per_minute=2,
    tokens_per_minute=1000,
    concurrent_requests=5,
    budgets=(Budget(period="total", amount=10**12),),
)
KEY = ApiKey(name="k", digest=b"", limits=LIMITS)
ANSWER = b'{"usage":{"prompt_tokens":90,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":30}}}'


class Books:
    """Counts what admission decides."""

    def __init__(self) -> None:
        self.refused: list[HeadraceError] = []
        self.settled: list[Bill] = []

    def on_refused(self, error: HeadraceError) -> None:
        self.refused.append(error)

    def on_settled(self, model: str, bill: Bill) -> None:
        self.settled.append(bill)


def call_of(*, priority: bytes | None = None, path: bytes = b"/v1/chat/completions", **fields: object) -> Call:
    request = Request(
        method="POST",
        target=path,
        headers=[] if priority is None else [(b"x-headrace-priority", priority)],
        is_http10=False,
        keep_alive=True,
        body=msgspec.json.encode({"model": "m", "messages": [], "max_tokens": 50, **fields}),
    )
    served = ServedModel(card=ModelCard(id="m", max_model_len=1000), raw=msgspec.Raw(b"{}"))
    return identify(request, models={"m": served}, request_id=b"1")


def admission_of(books: Books, *, places: int | None = None) -> Admission:
    return Admission(
        AdmissionSettings(price=("m=1/0.5/2",)), places=lambda model: places, observer=books, clock=lambda: 1e9
    )


def answer(ticket: Ticket) -> None:
    ticket.meter.is_sent = True
    ticket.meter.begin(ResponseHead(status=200, reason=b"OK", is_json=True))
    ticket.meter.feed(ANSWER)


@pytest.mark.parametrize("priority", [None, b"batch"])
def test_an_admission_without_waiting_is_the_same_as_one_that_might_wait(priority: bytes | None) -> None:
    async def told(*, at_once: bool) -> list[object]:
        books, call = Books(), call_of(priority=priority)
        admission = admission_of(books)
        ticket = admission.admit_now(KEY, call, PROMPT) if at_once else await admission.admit(KEY, call, PROMPT)
        assert ticket is not None
        with ticket:
            answer(ticket)
            found: list[object] = [ticket.headers(), ticket.cost_headers(), ticket.has_price, ticket.waited_s]
        return [*found, books.settled, admission.statistics(), await admission.report(KEY)]

    async def scenario() -> None:
        assert await told(at_once=True) == await told(at_once=False)

    run_virtual(scenario())


async def test_what_is_refused_at_once_is_refused_alike_and_counted_once() -> None:
    other = ApiKey(name="o", digest=b"", models=frozenset({"x"}))
    cases = [(KEY, call_of(n=30), LimitError), (other, call_of(), PermissionDeniedError)]
    cases.append((KEY, call_of(priority=b"urgent"), InvalidRequestError))
    for key, call, kind in cases:
        books = Books()
        admission = admission_of(books)
        with pytest.raises(kind) as at_once:
            admission.admit_now(key, call, PROMPT)
        assert books.refused == [at_once.value]
        with pytest.raises(kind) as later:
            await admission.admit(key, call, PROMPT)
        assert at_once.value.message == later.value.message
        assert (await admission.report(key)).levels.num_open == 0


def test_the_request_over_the_rate_is_refused_at_once_with_its_limits() -> None:
    admission = admission_of(Books())
    tickets = [admission.admit_now(KEY, call_of(), PROMPT) for _ in range(2)]
    with pytest.raises(LimitError) as caught:
        admission.admit_now(KEY, call_of(), PROMPT)

    assert None not in tickets
    assert dict(caught.value.headers)[b"x-ratelimit-remaining-requests"] == b"0"
    assert dict(caught.value.headers)[b"x-ratelimit-remaining-tokens"] == b"700"


def test_where_a_queue_stands_nothing_is_held_and_the_request_waits() -> None:
    async def scenario() -> None:
        books = Books()
        admission = admission_of(books, places=1)
        first = admission.admit_now(KEY, call_of(), PROMPT)
        assert first is not None
        assert admission.admit_now(KEY, call_of(), PROMPT) is None
        assert (await admission.report(KEY)).levels.num_open == 1
        waits = asyncio.get_running_loop().create_task(admission.admit(KEY, call_of(), PROMPT))
        await asyncio.sleep(3.0)
        with first:
            answer(first)
        with await waits:
            assert (await admission.report(KEY)).levels.num_open == 1
        assert [bill.source for bill in books.settled] == ["usage", "nothing"]
        assert not books.refused

    run_virtual(scenario())


rates = st.none() | st.integers(1, 10**8)


@given(
    requests=rates,
    tokens=rates,
    requests_debt=st.integers(0, 10**16),
    tokens_debt=st.integers(0, 10**16),
    held_tokens=st.integers(0, 10**8),
)
def test_limits_are_written_as_they_are_told(
    requests: int | None, tokens: int | None, requests_debt: int, tokens_debt: int, held_tokens: int
) -> None:
    limits = KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens)
    levels = Levels(requests_debt=requests_debt, tokens_debt=tokens_debt, held_tokens=held_tokens)

    assert limit_lines(limits, levels) == lines_of(limit_headers(limits, levels))


@pytest.mark.parametrize("waited_s", [0.0, 1.5])
@pytest.mark.parametrize("why_local", [None, "away"])
@pytest.mark.parametrize("price", [None, Price(input=10**6, cached_input=10**5, output=2 * 10**6)])
def test_a_ticket_writes_what_it_tells(waited_s: float, why_local: str | None, price: Price | None) -> None:
    place = Place(None)
    place.waited_s = waited_s
    grant = Grant(key=KEY, hold=Hold(num_tokens=150), levels=Levels(num_open=1, spent=(0,)))
    ticket = Ticket(grant, call_of(), price=price, place=place, settler=admission_of(Books()), why_local=why_local)

    assert ticket.cost_line() == lines_of(ticket.cost_headers()) == b""
    answer(ticket)
    assert ticket.lines() == lines_of(ticket.headers())
    assert ticket.cost_line() == lines_of(ticket.cost_headers())
    assert ticket.cost_line() == (b"" if price is None else b"x-headrace-cost: 0.000083\r\n")
    assert (b"local" in ticket.lines(), b"1500.000" in ticket.lines()) == (why_local is not None, waited_s > 0)


@pytest.mark.parametrize(
    ("call", "prompt", "expected"),
    [
        (call_of(), PROMPT, Hold(num_tokens=150, completion_tokens=50, cost=200)),
        (call_of(n=3), PROMPT, Hold(num_tokens=250, completion_tokens=150, cost=400)),
        (call_of(n=-3), PROMPT, Hold(num_tokens=150, completion_tokens=50, cost=200)),
        (call_of(max_tokens=None), PROMPT, Hold(num_tokens=612, completion_tokens=512, cost=1124)),
        (call_of(max_tokens=-5), PROMPT, Hold(num_tokens=100, cost=100)),
        (call_of(max_tokens=5000), PROMPT, Hold(num_tokens=1000, completion_tokens=900, cost=1900)),
        (
            call_of(),
            PromptCount(total=9, longest=5, num_prompts=2),
            Hold(num_tokens=109, completion_tokens=100, cost=209),
        ),
        (call_of(), PromptCount(total=1001, longest=1001), Hold(num_tokens=1001, cost=1001)),
        (call_of(path=b"/v1/embeddings"), PROMPT, Hold(num_tokens=100, cost=100)),
        (call_of(max_completion_tokens=7), PROMPT, Hold(num_tokens=150, completion_tokens=50, cost=200)),
        (call_of(max_output_tokens=7), PROMPT, Hold(num_tokens=150, completion_tokens=50, cost=200)),
        (call_of(max_completion_tokens=70), PROMPT, Hold(num_tokens=170, completion_tokens=70, cost=240)),
        (
            call_of(path=b"/v1/completions", max_completion_tokens=1),
            PROMPT,
            Hold(num_tokens=150, completion_tokens=50, cost=200),
        ),
        (call_of(best_of=3, n=2), PROMPT, Hold(num_tokens=250, completion_tokens=150, cost=400)),
        (
            call_of(messages=[{"role": "user", "content": "x" * 574}], prompt_token_ids=[1]),
            PromptCount(total=1, longest=1),
            Hold(num_tokens=252, completion_tokens=50, cost=302),
        ),
        (call_of(path=b"/tokenize"), PROMPT, Hold()),
    ],
)
def test_the_most_that_a_request_can_use_is_held(call: Call, prompt: PromptCount, expected: Hold) -> None:
    price = Price(input=1, cached_input=0, output=2)

    assert hold_of(call, prompt, price=price, default_completion_tokens=512) == expected
    assert hold_of(call, prompt, price=None, default_completion_tokens=512).cost == 0


UNCOUNTED = PromptCount(why="prompt_not_understood")
BASE64 = "A" * 3_000_000
URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}


@pytest.mark.parametrize(
    ("part", "num_tokens"),
    [
        (URL, 16_384),
        (SOUND, 16_384),
        (PICTURE, 16_384),
        ({"type": "text", "text": BASE64}, 1_000_000),
        ({"type": "text", "text": ";base64," + "A " * 1_500_000}, 1_000_000),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3000}}, 1000),
    ],
)
def test_a_picture_counts_as_a_large_one_at_most_whatever_the_size_of_its_file(
    part: dict[str, object], num_tokens: int
) -> None:
    call = call_of(messages=[{"role": "user", "content": [part, part]}])

    hold = hold_of(call, UNCOUNTED, price=None, default_completion_tokens=512)

    assert 2 * num_tokens <= hold.prompt_tokens < 2 * num_tokens + 100

from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.admission.keys import given_digest, given_key, without_keys
from headrace.gateway.http.head import forwarded_request_head
from headrace.gateway.http.head_facts import Headers, HeadFacts
from headrace.gateway.http.message import Request
from headrace.gateway.http.request_reader import RequestReader, SizeLimits
from headrace.gateway.upstream.key import bearer

NAMES = [b"Host", b"Authorization", b"x-api-key", b"TE", b"Connection", b"x-request-id", b"X-Forwarded-For", b"x-mine"]
VALUES = [b"", b"Bearer one", b"keep-alive, x-mine", b"trailers", b"10.0.0.1", b"a, b"]


def read_all(*messages: bytes) -> list[Request]:
    requests: list[Request] = []
    reader = RequestReader(
        limits=SizeLimits(max_head_bytes=4096, max_body_bytes=4096),
        on_head=lambda _: None,
        on_request=requests.append,
    )
    for message in messages:
        reader.feed(message)
    return requests


def message(fields: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"POST /v1/x?y HTTP/1.1\r\nhost: here\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body)


def forwarded(request: Request) -> bytes:
    return forwarded_request_head(
        method=request.method,
        target=request.target,
        facts=request.facts,
        host=b"engine:1",
        peer="10.9.9.9",
        request_id=b"r",
        content_length=len(request.body),
    )


@given(
    st.lists(st.tuples(st.sampled_from(NAMES[1:]), st.sampled_from(VALUES)), max_size=6),
    st.binary(max_size=20),
    st.binary(max_size=20),
)
def test_a_head_like_one_before_says_what_it_says_when_it_is_read_anew(
    fields: list[tuple[bytes, bytes]], first: bytes, second: bytes
) -> None:
    _, known = read_all(message(fields, first), message(fields, second))
    (anew,) = read_all(message(fields, second))

    assert known == anew
    assert known.path == anew.path == "/v1/x"
    for name in {name.lower() for name in NAMES}:
        expected = next((value for key, value in anew.headers if key == name), None)
        assert known.header(name) == anew.header(name) == expected
    assert forwarded(known) == forwarded(anew)
    assert known.facts.of(given_digest) == anew.facts.of(given_digest)
    for request in (known, anew):
        request.change_headers(without_keys)
        assert given_key(request.headers) is None
    assert known.headers == anew.headers
    assert forwarded(known) == forwarded(anew)


def test_what_one_request_drops_from_its_head_the_next_one_with_such_a_head_still_has() -> None:
    fields = [(b"authorization", b"Bearer one")]
    _, first, second = read_all(message(fields, b"0"), message(fields, b"1"), message(fields, b"22"))

    first.change_headers(without_keys)

    assert first.header(b"authorization") is None
    assert second.header(b"authorization") == b"Bearer one"
    assert (b"content-length", b"2") in second.headers


def test_each_question_is_asked_once_and_other_fields_are_asked_anew() -> None:
    asked: list[Headers] = []

    def num_fields(headers: Headers) -> int:
        asked.append(headers)
        return len(headers)

    request = Request(method="POST", target=b"/", headers=[(b"a", b"1")], is_http10=False, keep_alive=True)
    assert (request.facts.of(num_fields), request.facts.of(num_fields)) == (1, 1)
    request.set_headers(request.headers)
    assert request.facts.of(num_fields) == 1
    request.set_headers([(b"a", b"1"), (b"b", b"2")])
    assert request.facts.of(num_fields) == 2
    assert request.header(b"b") == b"2"
    assert asked == [[(b"a", b"1")], [(b"a", b"1"), (b"b", b"2")]]


def test_an_endpoint_s_key_takes_the_place_of_whatever_the_client_brought() -> None:
    facts = HeadFacts([(b"authorization", b"Bearer of the client"), (b"x-api-key", b"too"), (b"x-mine", b"1")])
    ours, same, other = bearer("one"), bearer("one"), bearer("two")
    assert ours is not None
    assert other is not None
    assert same is not None

    assert facts.changed(ours).headers == [(b"x-mine", b"1"), (b"authorization", b"Bearer one")]
    assert facts.changed(same) is facts.changed(ours)
    assert facts.changed(other).headers[-1] == (b"authorization", b"Bearer two")
    assert "one" not in repr(ours)

from headrace.gateway.http.head import forwarded_request_head, relayed_lines
from headrace.gateway.http.head_facts import HeadFacts

CONNECTION_FIELDS = [
    (b"connection", b"keep-alive, X-Mine"),
    (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"),
    (b"upgrade", b"h2c"),
    (b"proxy-authorization", b"secret"),
    (b"transfer-encoding", b"chunked"),
    (b"x-mine", b"1"),
]


def test_fields_of_the_connection_go_no_further_and_others_do() -> None:
    head = forwarded_request_head(
        method="POST",
        target=b"/x",
        facts=HeadFacts(
            [*CONNECTION_FIELDS, (b"host", b"evil"), (b"authorization", b"Bearer k"), (b"traceparent", b"00-1")]
        ),
        host=b"engine:1",
        peer="10.0.0.9",
        request_id=b"r1",
        content_length=3,
    )

    assert head.split(b"\r\n") == [
        b"POST /x HTTP/1.1",
        b"host: engine:1",
        b"authorization: Bearer k",
        b"traceparent: 00-1",
        b"x-request-id: r1",
        b"x-forwarded-for: 10.0.0.9",
        b"content-length: 3",
        b"",
        b"",
    ]


def test_the_client_is_appended_to_those_before_it() -> None:
    head = forwarded_request_head(
        method="POST",
        target=b"/x",
        facts=HeadFacts([(b"x-forwarded-for", b"1.1.1.1"), (b"x-forwarded-for", b"2.2.2.2")]),
        host=b"a",
        peer="3.3.3.3",
        request_id=b"r",
        content_length=0,
    )

    assert b"x-forwarded-for: 1.1.1.1, 2.2.2.2, 3.3.3.3\r\n" in head


def test_an_answer_keeps_its_own_fields_and_cannot_speak_for_the_gateway() -> None:
    fields = [*CONNECTION_FIELDS, (b"content-length", b"5"), (b"x-headrace-endpoint", b"fake"), (b"retry-after", b"3")]

    assert relayed_lines(fields) == b"retry-after: 3\r\n"

from headrace.gateway.http.message import ResponseHead
from headrace.gateway.usage import EventUsage, JsonUsage, NoUsage, Usage, usage_reader

USAGE = b'{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}'


def test_usage_of_a_json_body_is_found_across_its_parts() -> None:
    reader = JsonUsage()
    for part in (b'{"id":"x","usa', b'ge":' + USAGE, b"}"):
        reader.feed(part)

    usage = reader.result()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 2, 4)


def test_a_null_usage_in_every_chunk_does_not_hide_the_last() -> None:
    reader = EventUsage()
    reader.feed(b'data: {"choices":[],"usage":null}\n\n')
    reader.feed(b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n")
    reader.feed(b'data: {"usage":null}\n\n')

    usage = reader.result()
    assert usage is not None
    assert usage.prompt_tokens == 7


def test_the_word_usage_in_a_text_is_no_usage() -> None:
    reader = EventUsage()
    reader.feed(b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n')

    assert reader.result() is None


def test_a_broken_body_says_nothing() -> None:
    reader = JsonUsage()
    reader.feed(b'{"usage":')

    assert reader.result() is None


def test_errors_and_unreadable_bodies_are_not_searched() -> None:
    assert isinstance(usage_reader(ResponseHead(status=400, reason=b"", is_json=True)), NoUsage)
    assert isinstance(usage_reader(ResponseHead(status=200, reason=b"")), NoUsage)


def test_usage_without_details_has_no_cached_tokens() -> None:
    assert Usage(prompt_tokens=1).cached_tokens is None

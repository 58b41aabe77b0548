"""What clients say, and the keys they say it with, are in no log line, even at DEBUG and while things go wrong."""

import logging
from pathlib import Path

import pytest

from headrace.gateway.admission.key_file import KeyEntry, hash_text, write_entries
from headrace.gateway.admission.keys import digest_of
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.testing.fake_upstream import (
    FakeUpstream,
    answers,
    completes,
    dies_after,
    dies_at_once,
    hangs,
    sends,
    streams,
)
from tests.gateway.support import chat_body, chat_request, exchange, raw_client, running_gateway, settled

pytestmark = pytest.mark.integration

KEY, WRONG_KEY = "hr-sesame-open", "hr-sesame-shut"
PROMPT, ANSWER = "the miller's daughter", "spins straw to gold"
SECRETS = (KEY, WRONG_KEY, "miller", "straw")


def admission(path: Path) -> AdmissionSettings:
    file = path / "keys.yaml"
    write_entries(file, [KeyEntry(name="alice", hash=hash_text(digest_of(KEY.encode())))])
    return AdmissionSettings(keys_file=str(file), price=("demo=1/1/1",))


def ask(key: str = KEY, *, stream: bool = False, **fields: object) -> bytes:
    messages = [{"role": "user", "content": PROMPT}]
    return chat_request(
        chat_body(stream=stream, messages=messages, **fields),
        extra=f"Authorization: Bearer {key}\r\nX-Api-Key: {key}\r\n",
    )


async def test_neither_keys_nor_what_is_said_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bad_requests = [
        ask(WRONG_KEY),
        ask(model=PROMPT),
        ask(temperature=PROMPT),
        ask(stream_options=PROMPT),
        chat_request(f'{{"model":"demo","{PROMPT}'.encode(), extra=f"Authorization: Bearer {KEY}\r\n"),
        ask().replace(b"Content-Length", b"Content-Length : 1\r\nX"),
        ask()[:-5],
    ]
    behaviours = [
        completes(ANSWER),
        streams([ANSWER]),
        dies_at_once,
        dies_after(ANSWER, also=b"data: straw"),
        answers(500, body=ANSWER.encode()),
        sends(ANSWER.encode() + b"\r\n\r\n"),
        hangs,
    ]
    async with (
        FakeUpstream() as one,
        FakeUpstream() as two,
        running_gateway(
            one, two, admission=admission(tmp_path), first_byte_timeout_s=0.2, body_timeout_s=0.2
        ) as gateway,
    ):
        for behaviour in behaviours:
            one.behaviour = two.behaviour = behaviour
            for is_stream in (False, True):
                await exchange(gateway, ask(stream=is_stream))
        for request in bad_requests:
            await exchange(gateway, request)
        async with raw_client(gateway) as leaving:
            await leaving.send(ask())
            await leaving.read_head()
        await settled(gateway)
        shown = "\n".join([caplog.text, repr(gateway), repr(gateway.fleet.endpoints), repr(gateway.admission)])

    assert len(caplog.records) > 3
    assert [secret for secret in SECRETS if secret in shown] == []

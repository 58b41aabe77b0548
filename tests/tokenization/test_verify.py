"""A shortcut that is ever wrong is found at run time and switched off."""

import asyncio
import re
from collections.abc import Sequence

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.tokenization import ByteTokenizer, TokenIds, TokenizationService, TokenizationSettings
from headrace.tokenization.admission import Admission
from headrace.tokenization.compare import Check, Finding, compare, shrink
from headrace.tokenization.model_encoder import ModelEncoder
from headrace.tokenization.segments import CutRules, no_cuts


class _WrongForX(ByteTokenizer):
    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[TokenIds]:
        encoded = super().encode_batch(texts, add_special_tokens=add_special_tokens)
        return [ids[:-1] if "X" in text else ids for ids, text in zip(encoded, texts, strict=True)]


_WRONG_RULES = CutRules(pattern=re.compile("b"), num_dropped=1, reason="for the test")
_LONG = "a long text " * 20 + "X" + " and more of it" * 20


def _check(
    text: str, token_ids: TokenIds, *, encoder: ByteTokenizer | None = None, rules: CutRules | None = None
) -> Check:
    reference = ByteTokenizer()
    return Check(text, token_ids, reference, encoder or reference, rules or no_cuts("none"), add_special_tokens=False)


def _ids(text: str) -> TokenIds:
    return ByteTokenizer().encode_batch([text], add_special_tokens=False)[0]


def test_equal_ids_find_nothing_though_a_shortcut_would_be_wrong() -> None:
    assert compare(_check(_LONG, _ids(_LONG), encoder=_WrongForX(), rules=_WRONG_RULES)) is None


def test_a_wrong_encoder_is_found_with_the_shortest_text_that_shows_it() -> None:
    assert compare(_check(_LONG, _ids("?"), encoder=_WrongForX())) == Finding("encoder", "X")


def test_wrong_cuts_are_found_with_the_shortest_text_that_shows_it() -> None:
    text = "no such letter " * 30 + "b!" + "nor here " * 30
    finding = compare(_check(text, _ids("?"), rules=_WRONG_RULES))
    assert finding is not None
    assert finding.shortcut == "cuts"
    assert len(finding.example) == 2
    assert finding.example.startswith("b")


def test_what_no_encoding_explains_is_laid_on_the_cache() -> None:
    assert compare(_check("text", _ids("other"))) == Finding("cache", "text")


def test_shrinking_ends_for_any_condition() -> None:
    assert shrink("x" * 1000, lambda text: len(text) >= 700)
    trials: list[str] = []

    def never(text: str) -> bool:
        trials.append(text)
        return False

    assert shrink("y" * 5000, never) == "y" * 5000
    assert len(trials) <= 300


async def _verified(registry: CollectorRegistry, found: str) -> None:
    """Return when a comparison has found `found`."""
    async with asyncio.timeout(20):
        while not registry.get_sample_value(
            "headrace_tokenization_verifications_total", {"model": "m", "found": found}
        ):
            await asyncio.sleep(0.001)


async def test_a_wrong_encoder_is_switched_off_while_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    async with TokenizationService(TokenizationSettings(verify_share=1.0), registry=registry) as service:
        service.register("m", ByteTokenizer())
        encoder = service._models.encoder("m")
        encoder.admit(Admission(encoder=_WrongForX(), encoder_reason="for the test", cut_rules=no_cuts("none")))
        assert len((await service.encode("right", model="m")).token_ids) == 5
        await _verified(registry, "equal")
        assert len((await service.encode("X is wrong", model="m")).token_ids) == 9
        await _verified(registry, "encoder")
        assert not encoder.is_accelerated
        again = await service.encode("X is wrong", model="m")
        assert (again.token_ids.tolist(), again.source) == (_ids("X is wrong").tolist(), "short")
        assert "other ids than the reference for 'X'" in caplog.text


async def test_wrong_ids_in_the_cache_switch_it_off() -> None:
    registry = CollectorRegistry()
    async with TokenizationService(TokenizationSettings(verify_share=1.0), registry=registry) as service:
        service.register("m", ByteTokenizer())
        first = await service.encode("kept", model="m")
        first.token_ids.flags.writeable = True
        np.copyto(first.token_ids, 0)
        assert (await service.encode("kept", model="m")).source == "cache"
        await _verified(registry, "cache")
        for _ in range(2):
            again = await service.encode("kept", model="m")
            assert (again.source, again.token_ids.tolist()) == ("short", list(b"kept"))


async def test_a_share_of_nothing_compares_nothing() -> None:
    registry = CollectorRegistry()
    async with TokenizationService(TokenizationSettings(verify_share=0), registry=registry) as service:
        service.register("m", ByteTokenizer())
        for _ in range(20):
            await service.encode("kept", model="m")
        name, labels = "headrace_tokenization_verifications_total", {"model": "m", "found": "equal"}
        assert registry.get_sample_value(name, labels) is None


def test_dropping_a_shortcut_changes_the_namespace_so_that_nothing_old_is_found() -> None:
    encoder = ModelEncoder(ByteTokenizer())
    before = encoder.namespace(add_special_tokens=True)
    assert before != encoder.namespace(add_special_tokens=False)
    encoder.drop("cuts", why="test")
    assert encoder.namespace(add_special_tokens=True) != before
    assert not encoder.rules

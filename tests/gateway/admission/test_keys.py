import os
import threading
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.errors import AuthenticationError, SettingsError
from headrace.gateway.admission.key_file import KeyEntry, hash_text, locked, new_key, read_keys, write_entries
from headrace.gateway.admission.key_watch import KeyWatch
from headrace.gateway.admission.keys import ApiKey, KeyRing, digest_of, given_key


def entry(name: str, key: str, **fields: object) -> KeyEntry:
    return KeyEntry(name=name, hash=hash_text(digest_of(key.encode())), **fields)


def test_a_key_is_found_by_itself_only() -> None:
    ring = KeyRing([ApiKey(name="a", digest=digest_of(b"secret a")), ApiKey(name="b", digest=digest_of(b"secret b"))])

    assert ring.find(digest_of(b"secret b"), now_s=0.0).name == "b"
    for given in (b"secret", b"secret b ", digest_of(b"secret b")):
        with pytest.raises(AuthenticationError):
            ring.find(digest_of(given), now_s=0.0)
    for digest in (None, b"", b"secret b"):
        with pytest.raises(AuthenticationError):
            ring.find(digest, now_s=0.0)


def test_a_digest_that_agrees_in_its_first_bytes_is_not_enough() -> None:
    digest = digest_of(b"secret")
    ring = KeyRing([ApiKey(name="a", digest=digest[:8] + bytes(24))])

    with pytest.raises(AuthenticationError):
        ring.find(digest_of(b"secret"), now_s=0.0)


def test_an_expired_key_is_told_so() -> None:
    ring = KeyRing([ApiKey(name="a", digest=digest_of(b"k"), expires_s=10.0)])

    assert ring.find(digest_of(b"k"), now_s=9.9).name == "a"
    with pytest.raises(AuthenticationError) as caught:
        ring.find(digest_of(b"k"), now_s=10.0)
    assert caught.value.code == "expired_api_key"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"authorization", b"Bearer abc")], b"abc"),
        ([(b"authorization", b"bearer  abc ")], b"abc"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"x-api-key", b"abc")], b"abc"),
        ([(b"authorization", b"Bearer one"), (b"x-api-key", b"two")], b"one"),
    ],
)
def test_a_key_comes_as_bearer_or_as_x_api_key(headers: list[tuple[bytes, bytes]], expected: bytes | None) -> None:
    assert given_key(headers) == expected


def test_the_file_holds_everything_but_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    written = entry(
        "alice",
        "the secret",
        requests_per_minute=5,
        tokens_per_minute=100,
        concurrent_requests=2,
        budgets={"day": "0.5", "total": 3},
        models=["m"],
        priority="batch",
        weight=3,
    )
    write_entries(path, [written])
    (key,) = read_keys(path)

    assert (key.name, key.priority, key.weight, key.models) == ("alice", "batch", 3, {"m"})
    assert key.limits.requests_per_minute == 5
    assert [(budget.period, budget.amount) for budget in key.limits.budgets] == [
        ("day", 5 * 10**11),
        ("total", 3 * 10**12),
    ]
    assert KeyRing([key]).find(digest_of(b"the secret"), now_s=0.0) == key
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


HASH = hash_text(digest_of(b"x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys: [", "cannot be read"),
        ("keys: [2024-99-99]", "cannot be read"),
        ("other: []", "other"),
        (f"keys: [{{name: a, hash: '{HASH}', colour: red}}]", "colour"),
        (f"keys: [{{name: 'a b', hash: '{HASH}'}}]", "name"),
        ("keys: [{name: a, hash: plain}]", "hash"),
        (f"keys: [{{name: a, hash: '{HASH}', requests_per_minute: 0}}]", "requests_per_minute"),
        (f"keys: [{{name: a, hash: '{HASH}', budgets: {{week: 1}}}}]", "budgets"),
        (f"keys: [{{name: a, hash: '{HASH}', budgets: {{day: -1}}}}]", "-1"),
        (f"keys: [{{name: a, hash: '{HASH}', expires: 2026-01-01T00:00:00}}]", "expires"),
        (f"keys: [{{name: a, hash: '{HASH}'}}, {{name: b, hash: '{HASH}'}}]", "two keys"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)

    with pytest.raises(SettingsError) as caught:
        read_keys(path)
    assert words in caught.value.message
    assert caught.value.param == "keys_file"


def test_the_command_adds_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    file = ["--keys-file", str(path)]
    assert main(["keys", "add", "alice", *file, "--tokens-per-minute", "100", "--budget", "day=0.5"]) == 0
    secret = capsys.readouterr().out.strip()
    assert main(["keys", "add", "bob", *file]) == 0
    capsys.readouterr()
    assert main(["keys", "list", *file]) == 0
    listing = capsys.readouterr().out

    assert KeyRing(read_keys(path)).find(digest_of(secret.encode()), now_s=0.0).name == "alice"
    assert "100 tokens/min; 0.5 per day" in listing
    assert secret not in listing
    assert main(["keys", "revoke", "alice", *file]) == 0
    assert [key.name for key in read_keys(path)] == ["bob"]
    assert main(["keys", "revoke", "alice", *file]) == 2
    assert main(["keys", "add", "bob", *file]) == 2
    assert main(["keys", "add", "eve", *file, "--weight", "0"]) == 2
    assert [key.name for key in read_keys(path)] == ["bob"]


def test_two_who_add_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    waits = threading.Event()

    def add() -> None:
        waits.set()
        assert main(["keys", "add", "second", "--keys-file", str(path)]) == 0

    thread = threading.Thread(target=add)
    with locked(path):
        thread.start()
        assert waits.wait(10)
        write_entries(path, [entry("first", "x")])
    thread.join(10)

    assert [key.name for key in read_keys(path)] == ["first", "second"]


def test_no_two_new_keys_are_equal() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert all(len(new_key()) == len("hr-") + 43 for _ in range(10))


async def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    write_entries(path, [entry("a", "x")])
    changes: list[int] = []
    watch = KeyWatch(path, interval_s=3600.0, on_change=lambda ring: changes.append(len(ring)))
    await watch.start()
    await watch.look()
    assert changes == []

    write_entries(path, [entry("a", "x"), entry("b", "y")])
    await watch.look()
    assert changes == [2]

    path.write_text("keys: [")
    await watch.look()
    assert watch.why_stale is not None
    assert list(watch.ring.keys) == ["a", "b"]

    path.unlink()
    await watch.look()
    assert list(watch.ring.keys) == ["a", "b"]

    write_entries(path, [entry("b", "y")])
    os.utime(path, ns=(1, 1))
    await watch.look()
    assert watch.why_stale is None
    assert list(watch.ring.keys) == ["b"]
    await watch.aclose()


async def test_without_its_file_the_gateway_does_not_start(tmp_path: Path) -> None:
    watch = KeyWatch(tmp_path / "none.yaml", interval_s=1.0, on_change=lambda ring: None)

    with pytest.raises(SettingsError, match=r"none\.yaml"):
        await watch.start()
    await watch.aclose()

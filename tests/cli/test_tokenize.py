import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main

MESSAGES = [{"role": "user", "content": "one two"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer of the words `one` and `two`, whose chat template joins the contents; it adds id 2 in front."""
    end = {"id": 2, "content": "<s>", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | flags],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sequence],
            "pair": [begin, sequence],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "<s>": 2}, "unk_token": "one"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    template = (
        "{% for message in messages %}{{ message.content }}{% endfor %}{% if add_generation_prompt %} two{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return tmp_path


def tokenize(model: Path, *arguments: str, text: str | None = None) -> int:
    file = model / "text"
    if text is not None:
        file.write_text(text)
        arguments = (*arguments, str(file))
    return main(["tokenize", "--model", str(model), *arguments])


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        ([], "2 0 1"),
        (["--ids"], "2 0 1"),
        (["--ids", "--no-special"], "0 1"),
        (["--count"], "3"),
        (["--pieces"], '2\t"<s>"\n0\t"one"\n1\t"two"'),
    ],
)
def test_a_text_is_printed_as_asked(
    model: Path, flags: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tokenize(model, *flags, text="one two") == 0
    assert capsys.readouterr().out == f"{output}\n"


@pytest.mark.parametrize("chat", [MESSAGES, {"messages": MESSAGES}])
def test_a_chat_goes_through_the_template_and_gets_no_special_tokens_beside(
    model: Path, chat: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tokenize(model, "--chat", text=json.dumps(chat)) == 0
    assert capsys.readouterr().out == "0 1 1\n"


def test_a_chat_may_say_how_it_is_rendered(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = {"messages": MESSAGES, "add_generation_prompt": False}
    assert tokenize(model, "--chat", text=json.dumps(chat)) == 0
    assert capsys.readouterr().out == "0 1\n"


def test_without_a_file_standard_input_is_read(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"two")))
    assert tokenize(model) == 0
    assert capsys.readouterr().out == "2 1\n"


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("{", ["--chat"], "is no chat"),
        ('{"messages": 3}', ["--chat"], r"`\$.messages`"),
    ],
)
def test_a_chat_that_is_none_is_named_and_explained(
    model: Path, text: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tokenize(model, *flags, text=text) == 1
    error = capsys.readouterr().err
    assert error.startswith("headrace: ")
    assert message.replace("\\", "") in error


def test_bytes_that_are_no_text_are_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model / "raw"
    file.write_bytes(b"ab\xff")
    assert tokenize(model, str(file)) == 1
    assert "not UTF-8: byte 0xff at position 2" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokenize(model, str(model / "missing")) == 2
    assert "missing: No such file" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "--model", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_chat_needs_a_template(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "tokenizer_config.json").unlink()
    assert tokenize(model, "--chat", text="[]") == 1
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.integration
def test_a_reader_that_has_seen_enough_is_no_error(model: Path) -> None:
    (model / "text").write_text("one two " * 100_000)
    command = [sys.executable, "-m", "headrace.cli.main", "tokenize", "--model", str(model), str(model / "text")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0

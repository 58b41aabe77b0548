import json
from pathlib import Path

import pytest

from headrace.errors import TokenizationError
from headrace.tokenization import load_tokenizer


@pytest.fixture
def model_dir(tmp_path: Path, tiny_tokenizer_json: bytes) -> Path:
    """A directory as models come in: a vocabulary and a configuration."""
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer_json)
    _write_config(tmp_path, eos_token="<|endoftext|>", chat_template="config {{ eos_token }}")
    return tmp_path


def _write_config(directory: Path, **config: object) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def _render(directory: Path, *, has_tools: bool = False) -> str:
    template = load_tokenizer(directory).chat_template
    assert template is not None
    return template.render([{"role": "user", "content": "x"}], tools=[{"name": "f"}] if has_tools else None)


def test_a_directory_gives_tokens_and_template(model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.special_token_ids == {2}
    assert _render(model_dir) == "config <|endoftext|>"


def test_the_tokenizer_file_of_a_directory_gives_the_same(model_dir: Path) -> None:
    assert load_tokenizer(model_dir / "tokenizer.json").fingerprint == load_tokenizer(model_dir).fingerprint


def test_a_special_token_may_be_written_as_an_object(model_dir: Path) -> None:
    _write_config(model_dir, eos_token={"content": "<|endoftext|>", "lstrip": False})
    assert load_tokenizer(model_dir).eos_token_id == 2


def test_special_tokens_are_found_in_the_special_tokens_map_too(model_dir: Path) -> None:
    _write_config(model_dir)
    (model_dir / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    assert load_tokenizer(model_dir).eos_token_id == 2


def test_a_template_file_wins_over_the_configuration(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("from the file")
    assert _render(model_dir) == "from the file"


def test_of_named_templates_tool_use_serves_tools(model_dir: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    _write_config(model_dir, chat_template=named)
    assert (_render(model_dir), _render(model_dir, has_tools=True)) == ("plain", "tools")


def test_additional_template_files_are_named_by_their_files(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("plain")
    (model_dir / "additional_chat_templates").mkdir()
    (model_dir / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert (_render(model_dir), _render(model_dir, has_tools=True)) == ("plain", "tools")


def test_another_template_makes_another_fingerprint(model_dir: Path) -> None:
    before = load_tokenizer(model_dir).fingerprint
    (model_dir / "chat_template.jinja").write_text("changed")
    assert load_tokenizer(model_dir).fingerprint != before


def test_a_file_of_another_name_stands_alone(model_dir: Path, tiny_tokenizer_json: bytes) -> None:
    (model_dir / "other.json").write_bytes(tiny_tokenizer_json)
    tokenizer = load_tokenizer(model_dir / "other.json")
    assert tokenizer.chat_template is None
    assert tokenizer.eos_token_id is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizationError, match=r"tokenizer\.json: No such file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_configuration_is_named(model_dir: Path, content: str) -> None:
    (model_dir / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizationError, match=r"tokenizer_config\.json"):
        load_tokenizer(model_dir)


def test_a_broken_template_is_an_error_at_load(model_dir: Path) -> None:
    _write_config(model_dir, chat_template="{% for %}")
    with pytest.raises(TokenizationError, match="chat template 'default' is not valid"):
        load_tokenizer(model_dir)

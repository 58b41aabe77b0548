"""Every block of code on the pages is of a kind that some test runs, and no command is left out."""

import re
import tomllib

import pytest

from headrace.tokenization import ChatPrompt, TokenizationService
from tests.docs.blocks import ROOT, blocks, blocks_of, commands_of, inline_commands, one_line
from tests.docs.checks import check, is_known
from tests.docs.ways import NOT_RUN, SLOW, SURROUNDINGS, meant_by, run_elsewhere

_RUN_BY = {
    "sh": "test_commands.py",
    "python": "test_pages.py and test_commands.py",
    "yaml": "test_settings_blocks.py",
    "text": "this file: what is no code",
}
"""The languages of blocks, and where they are tested. Another one needs a test first."""
_STARTS_A_COMMAND = re.compile(
    r"\s*(\$ |\S*/)?(cat|cd|curl|docker|export|git|headrace|helm|kubectl|make|pip|promtool|python3?|ray|serve|vllm) \S"
)


_PLACES = (
    ".",
    "src/headrace",
    *(f"src/headrace/{name}" for name in ("tokenization", "engine", "gateway")),
)
"""Folders that the map of the README goes down into."""


def all_commands() -> set[str]:
    return {one_line(command) for block in blocks() for command in block.commands}


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert [block.name for block in blocks() if block.language not in _RUN_BY] == []


def test_every_language_with_a_test_is_in_use() -> None:
    assert {block.language for block in blocks()} == set(_RUN_BY)


def test_blocks_of_text_hold_no_commands() -> None:
    lines = [line for block in blocks("text") for line in block.text.splitlines()]
    assert [line for line in lines if _STARTS_A_COMMAND.match(line)] == []


def test_each_line_of_the_tables_means_one_command_of_the_pages() -> None:
    listed = [*NOT_RUN, *(command for run in SLOW for command in run.commands)]
    assert [line for line in listed if len(meant_by(line)) != 1] == []
    assert len(run_elsewhere()) == len(listed), "a command is tested in one way"


def test_what_surrounds_a_page_belongs_to_one_with_commands() -> None:
    assert SURROUNDINGS.keys() <= {block.page for block in blocks("sh")}


@pytest.mark.parametrize("command", NOT_RUN)
def test_what_a_command_that_is_not_run_names_is_there(command: str) -> None:
    assert is_known(command)
    check(command)


def commands_to_check() -> list[str]:
    """Those of blocks that are run too, since few flags are needed for what is run to go well."""
    found = {*all_commands(), *inline_commands()} - NOT_RUN.keys()
    return sorted(command for command in found if is_known(command) and "..." not in command)


@pytest.mark.parametrize("command", commands_to_check())
def test_what_a_command_names_is_there(command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "wrong",
    [
        "headrace gateway --no-such-flag",
        "headrace bench gateway --no-such-flag",
        "make nothing",
        "make bench SLOWLY=1",
        "pip install 'headrace[everything]'",
        "python -m benchmarks.all --no-such-flag",
        "helm install headrace deploy/helm/headrace --set nothing=1",
    ],
)
def test_a_command_that_names_what_is_not_there_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong)


def test_the_map_of_the_readme_names_what_is_there() -> None:
    (text,) = (block.text for block in blocks("text") if block.page == "README.md")
    named = [name.rstrip("/") for name in re.findall(r"(?<![\w/.])[\w/]+(?:/|\.py)(?![\w/.])", text)]
    assert len(named) > 30
    assert [name for name in named if not any((ROOT / place / name).exists() for place in _PLACES)] == []


async def test_the_chat_format_of_the_demo_model_is_what_its_template_makes() -> None:
    (text,) = (block.text for block in blocks("text") if block.page == "models/demo/README.md")
    chat = [{"role": role, "content": said} for role, said in re.findall(r"<.im_start.>(\w+)\n(.*)<.im_end.>", text)]
    async with TokenizationService() as service:
        await service.load("demo", str(ROOT / "models" / "demo"))
        rendered = await service.encode(ChatPrompt(messages=chat, add_generation_prompt=False), model="demo")
        written = await service.encode(text, model="demo")
    assert len(chat) == 2
    assert rendered.token_ids.tolist() == written.token_ids.tolist()


def test_the_layers_of_the_architecture_are_those_that_are_held() -> None:
    (text,) = (block.text for block in blocks("text") if block.page == "docs/architecture.md")
    held = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    drawn = [set(re.findall(r"\w+", layer)) for layer in text.splitlines()[0].split("->")]
    assert len(drawn) > 5
    for layer, modules in zip(reversed(held[1:]), drawn, strict=True):
        assert modules <= {name.strip().removeprefix("headrace.") for name in layer.split("|")}


def test_commands_are_read_with_their_further_lines_and_here_documents() -> None:
    text = "first --flag \\\n  --other  # why\n\n# nothing\ncat > a <<'END'\nkey: 1 # kept\n\nEND\nlast\n"
    assert list(commands_of(text)) == [
        "first --flag \\\n  --other",
        "cat > a <<'END'\nkey: 1 # kept\n\nEND",
        "last",
    ]


def test_blocks_are_found_fenced_and_indented_but_not_in_lists() -> None:
    text = (
        "Words\n\n    headrace top\n\n    make demo\n\n- an item\n\n    goes on\n\nWords\n    too\n\n"
        "```yaml\na: 1\n```\n\n```\n    headrace top\n```\n"
    )
    found = [(block.language, block.text) for block in blocks_of("page", text)]
    assert found == [("sh", "headrace top\nmake demo\n"), ("yaml", "a: 1\n"), ("", "    headrace top\n")]

"""The code of the pages: blocks by language, the commands in them, and the commands within sentences.

An indented block is one of shell commands. What runs them is in the tests.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
"""What readers are led to."""
_FOLDERS = ("benchmarks", "changelog.d", "deploy", "examples", "models", "scripts")
PAGES_WITH_CODE = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    *(path for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("README*.md"))),
]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_LIST_ITEM = re.compile(r" {0,3}([-*+]|\d+[.)]) ")
_HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")
_COMMENT = re.compile(r"(^|\s+)#\s.*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a page. `language` is what stands behind its fence."""

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"

    @property
    def commands(self) -> list[str]:
        return list(commands_of(self.text)) if self.language == "sh" else []


def blocks(*languages: str) -> list[Block]:
    """Those in one of the languages, or all of them; in the order of their pages."""
    found = [block for page in PAGES_WITH_CODE for block in blocks_of(name_of(page), page.read_text(encoding="utf-8"))]
    return [block for block in found if not languages or block.language in languages]


def blocks_of(page: str, text: str) -> list[Block]:
    """The blocks of one page, fenced and indented, in order."""
    fenced = [(found.start(), found[2].strip(), found[3]) for found in _BLOCK.finditer(text)]
    indented = [(start, "sh", code) for start, code in _indented(_BLOCK.sub(_blank, text))]
    return [
        Block(page=page, number=number, language=language, text=code)
        for number, (_, language, code) in enumerate(sorted(fenced + indented), start=1)
    ]


def commands_of(text: str) -> Iterator[str]:
    """Each command with its further lines and its here-document; without comments."""
    lines = iter(text.splitlines())
    for line in lines:
        command = _COMMENT.sub("", line).rstrip()
        while command.endswith("\\"):
            command += "\n" + _COMMENT.sub("", next(lines)).rstrip()
        if here := _HERE_DOCUMENT.search(command):
            while not command.endswith(f"\n{here[1]}"):
                command += "\n" + next(lines)
        if command.strip():
            yield command


def inline(text: str) -> list[str]:
    """What stands between backticks in the sentences and tables of a page, in one line each."""
    return [one_line(found) for found in _INLINE.findall(_BLOCK.sub("", text))]


def inline_commands() -> list[str]:
    """What could be commands there: several words, the first in small letters."""
    texts = [text for page in PAGES_WITH_CODE for text in inline(page.read_text(encoding="utf-8"))]
    return sorted({text for text in texts if re.match(r"[a-z.]\S* \S", text)})


def one_line(command: str) -> str:
    """A command as the tables in `ways.py` have it."""
    return " ".join(command.replace("\\\n", " ").split())


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _indented(text: str) -> Iterator[tuple[int, str]]:
    """Where each indented block begins, and its text; lines that go on with a list's item are none."""
    position, start, code, is_in_list, after_blank = 0, 0, "", False, True
    for line in [*text.splitlines(keepends=True), "end"]:
        is_code = line.startswith("    ") and bool(line.strip()) and not is_in_list and (after_blank or bool(code))
        if is_code:
            start, code = (start, code) if code else (position, "")
            code += line[4:]
        elif code and line.strip():
            yield start, code
            code = ""
        if line.strip() and not line.startswith(" "):
            is_in_list = bool(_LIST_ITEM.match(line)) or (is_in_list and not after_blank)
        after_blank = not line.strip()
        position += len(line)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"\S", "", found[0]).ljust(len(found[0]), "\n")

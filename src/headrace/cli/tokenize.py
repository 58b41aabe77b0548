"""`headrace tokenize`: the token ids of a text or a chat, as the gateway and the engine compute them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.cli.output import discard_stdout
from headrace.errors import InvalidRequestError, SettingsError
from headrace.tokenization.load import load_tokenizer
from headrace.tokenization.tokenizer import TokenIds, Tokenizer

_STANDARD_INPUT = "-"
_DEMO_MODEL = "models/demo"


class Chat(msgspec.Struct, frozen=True):
    """What `--chat` reads, when it is not a bare list of messages."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] | None = None


def run(argv: Sequence[str]) -> int:
    """Print what was asked for; the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.model == _DEMO_MODEL and not Path(_DEMO_MODEL).exists():  # else it would be asked for on the hub
        raise SettingsError(
            f"--model {_DEMO_MODEL}: no model here; run from the repository's root, or name one", param="model"
        )
    tokenizer = load_tokenizer(arguments.model)
    source = _read(arguments.file)
    text = _render(source, tokenizer, name=arguments.file) if arguments.chat else source
    (token_ids,) = tokenizer.encode_batch([text], add_special_tokens=not (arguments.chat or arguments.no_special))
    return _write(_FORMATS[arguments.format](tokenizer, token_ids))


def _read(file: str) -> str:
    """The whole of `file`, byte for byte: a newline at the end is part of the text."""
    try:
        raw = sys.stdin.buffer.read() if file == _STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}", param="file") from error
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{_name(file)} is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}"
        ) from error


def _render(source: str, tokenizer: Tokenizer, *, name: str) -> str:
    if tokenizer.chat_template is None:
        raise InvalidRequestError(f"the tokenizer {tokenizer.name} has no chat template; leave --chat out")
    try:
        chat = msgspec.json.decode(source, type=list[dict[str, object]] | Chat)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(
            f"{_name(name)} is no chat: {error}; give a JSON list of messages, or an object with 'messages'"
        ) from error
    if isinstance(chat, list):
        chat = Chat(chat)
    tools: list[Mapping[str, object]] | None = list(chat.tools) if chat.tools is not None else None
    return tokenizer.chat_template.render(
        chat.messages,
        tools=tools,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        template_kwargs=chat.chat_template_kwargs,
    )


def _count(_: Tokenizer, token_ids: TokenIds) -> str:
    return str(len(token_ids))


def _ids(_: Tokenizer, token_ids: TokenIds) -> str:
    return " ".join(map(str, token_ids.tolist()))


def _pieces(tokenizer: Tokenizer, token_ids: TokenIds) -> str:
    """A line for each token: its id, and as JSON how the vocabulary writes it."""
    pieces = zip(token_ids.tolist(), tokenizer.token_strings(token_ids), strict=True)
    return "\n".join(f"{token_id}\t{msgspec.json.encode(piece).decode()}" for token_id, piece in pieces)


_FORMATS = {"count": _count, "ids": _ids, "pieces": _pieces}


def _write(output: str) -> int:
    try:
        sys.stdout.write(f"{output}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; nothing may be flushed at exit either
        discard_stdout()
    return 0


def _name(file: str) -> str:
    return "standard input" if file == _STANDARD_INPUT else file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace tokenize", description=__doc__)
    parser.add_argument(
        "file", nargs="?", default=_STANDARD_INPUT, metavar="FILE", help="the text, UTF-8 (default: standard input)"
    )
    parser.add_argument(
        "--model",
        default=_DEMO_MODEL,
        metavar="DIR",
        help="a model's directory, or a tokenizer.json (default: %(default)s)",
    )
    parser.add_argument(
        "--chat", action="store_true", help="FILE holds a chat as JSON: messages, or an object like a request's"
    )
    parser.add_argument("--no-special", action="store_true", help="do not add the tokenizer's own special tokens")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--ids", dest="format", action="store_const", const="ids", help="the ids (the default)")
    formats.add_argument("--count", dest="format", action="store_const", const="count", help="how many there are")
    formats.add_argument("--pieces", dest="format", action="store_const", const="pieces", help="one token a line")
    parser.set_defaults(format="ids")
    return parser

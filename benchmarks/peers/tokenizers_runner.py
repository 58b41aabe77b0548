"""Other tokenizer libraries behind pipes, in their own environment: needs nothing of Headrace's.

    python tokenizers_runner.py TOKENIZER_JSON

Writes a JSON line with the libraries that can load the tokenizer, and why others cannot; then answers every JSON line
that it reads, `{"library": ..., "text": ...}`, with the ids and the seconds of that one call.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

Encode = Callable[[str], Iterable[int]]
_WARM_UP = "The first call of a library builds what the others use. \u4e16\u754c"


def gigatoken(path: Path) -> Encode:
    encode: Encode = import_module("gigatoken").Tokenizer(str(path)).encode
    return encode


def kitoken(path: Path) -> Encode:
    tokenizer = import_module("kitoken").Kitoken.from_file(str(path))
    return lambda text: tokenizer.encode(text, True)


def tokie(path: Path) -> Encode:
    tokenizer = import_module("tokie").Tokenizer.from_json(str(path))
    return lambda text: tokenizer.encode(text).ids


def tiktoken(path: Path) -> Encode:
    """Made from a byte-level BPE of one regex. It does not normalize: texts that are NFC already are the same."""
    definition = json.loads(path.read_text(encoding="utf-8"))
    if definition["model"]["type"] != "BPE":
        raise ValueError("it is no BPE")
    byte_of = _bytes_of_characters()
    ranks = {bytes(byte_of[char] for char in token): rank for token, rank in definition["model"]["vocab"].items()}
    special = {token["content"]: token["id"] for token in definition["added_tokens"]}
    ranks = {token: rank for token, rank in ranks.items() if rank not in special.values()}
    encoding = import_module("tiktoken").Encoding(
        "model", pat_str=_regex_of(definition), mergeable_ranks=ranks, special_tokens=special
    )
    return lambda text: encoding.encode(text, allowed_special="all")


LIBRARIES = {"tiktoken": tiktoken, "gigatoken": gigatoken, "kitoken": kitoken, "tokie": tokie}


def _regex_of(definition: dict[str, Any]) -> str:
    parts = definition["pre_tokenizer"]
    parts = parts.get("pretokenizers", [parts])
    found = [part["pattern"]["Regex"] for part in parts if part["type"] == "Split"]
    if len(found) != 1 or any(part["type"] not in {"Split", "ByteLevel"} for part in parts):
        raise ValueError("its pre-tokenizer is not one regex")
    return str(found[0])


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's way to write bytes as characters."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


def load(path: Path) -> tuple[dict[str, Encode], dict[str, str]]:
    """Those that could be loaded, and what the others said."""
    found, missing = {}, {}
    for name, make in LIBRARIES.items():
        try:
            encode = make(path)
            encode(_WARM_UP)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, it is left out
            missing[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            found[name] = encode
    return found, missing


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    libraries, missing = load(Path(sys.argv[1]))
    print(json.dumps({"libraries": list(libraries), "missing": missing}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        encode, text = libraries[request["library"]], request["text"]
        begun_s = time.perf_counter()
        ids = encode(text)
        elapsed_s = time.perf_counter() - begun_s
        print(json.dumps({"seconds": elapsed_s, "ids": [int(one) for one in ids]}), file=answers, flush=True)


if __name__ == "__main__":
    main()

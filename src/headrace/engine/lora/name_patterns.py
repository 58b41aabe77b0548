"""Which names an adapter's regular expressions match, found within a bounded time.

They come from anywhere, and one of Python's can take for ever.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable

from headrace.errors import InvalidRequestError

_TIMEOUT_S = 5.0
_MAX_CHARS = 64 * 1024
"""Of all expressions of an adapter."""

_QUICK = re.compile(r"(\(\.\*\\\.\)\?\([\w.\\^$-]*\))|[\w.\\^$-]*")
"""Nothing in it repeats or chooses, but what may stand before the end of a name: few looks say whether it matches."""

_MATCH = """
import json, re, sys
expressions, names = json.load(sys.stdin)
json.dump([[name for name in names if re.fullmatch(each, name)] for each in expressions], sys.stdout)
"""


def matches(expressions: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Of each expression the `names` that it matches from end to end (blocking, 5 s at most).

    Raises InvalidRequestError when that takes longer or the expressions are too long, and re.error for what is none.
    """
    wanted, known = sorted(set(expressions)), sorted(set(names))
    if sum(map(len, wanted)) > _MAX_CHARS:
        message = f"the adapter's regular expressions have more than {_MAX_CHARS} characters"
        raise InvalidRequestError(message, param="lora_path")
    found = {each: _matched(re.compile(each), known) for each in wanted if _QUICK.fullmatch(each)}
    slow = [each for each in wanted if each not in found]
    for each in slow:
        re.compile(each)
    return found | dict(zip(slow, _matched_elsewhere(slow, known), strict=True))


def _matched(expression: re.Pattern[str], names: list[str]) -> frozenset[str]:
    return frozenset(name for name in names if expression.fullmatch(name))


def _matched_elsewhere(expressions: list[str], names: list[str]) -> list[frozenset[str]]:
    """In a process that can be ended, which a match in this one cannot."""
    if not expressions:
        return []
    command = [sys.executable, "-I", "-S", "-c", _MATCH]
    question = json.dumps([expressions, names])
    try:
        # Our own program; what comes from outside is its input.
        ended = subprocess.run(command, input=question, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired:
        shown = f"{expressions!r:.200}"
        message = f"the adapter's expressions take more than {_TIMEOUT_S:g} s to match, simplify them: {shown}"
        raise InvalidRequestError(message, param="lora_path") from None
    except subprocess.CalledProcessError as error:
        message = f"the adapter's regular expressions cannot be matched: {error.stderr.strip()[-200:]}"
        raise InvalidRequestError(message, param="lora_path") from None
    return [frozenset(each) for each in json.loads(ended.stdout)]

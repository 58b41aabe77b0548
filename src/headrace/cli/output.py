"""Where commands write: standard streams that may be closed, full, gone or not UTF-8, and files named by flags."""

import codecs
import errno
import io
import os
import sys
from pathlib import Path

from headrace.errors import SettingsError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def prepare_streams() -> None:
    """Let printing never fail for the streams' own sake: a closed one is the null device, letters that the locale lacks
    are escaped."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for the process's life
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - as above
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - as above
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def is_failed_write(error: OSError) -> bool:
    """Whether what was to be printed has nowhere to go: its reader has left, or the disk is full."""
    return isinstance(error, BrokenPipeError) or error.errno in _NO_ROOM


def discard_stdout() -> None:
    """Drop what standard output still holds: the interpreter would try to write it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_directory_of(path: Path, *, flag: str) -> None:
    """Refuse, before a long measurement, a file that could not be written after it. Raises SettingsError."""
    if path.is_dir():
        raise SettingsError(f"{flag} {path}: is a directory; name a file")
    if not os.access(path.parent, os.W_OK):
        raise SettingsError(f"{flag} {path}: cannot be written: {path.parent} is no directory that you may write to")

"""Reads one call, a JSON object with a name and arguments, while it arrives: first whether it is one, then its pieces.

Knows nothing of what stands around the object.
"""

from collections.abc import Collection
from dataclasses import dataclass

from headrace.openai.tools.json_members import MemberReader, Status, ValuePiece, string_value

ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_CALL_KEYS = ARGUMENT_KEYS | {"name", "type", "id"}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What is new of a call: its name, once, and then more of its arguments as JSON text."""

    name: str | None
    arguments: str


class CallReader:
    """One object. It is a call once its name is known and its arguments have begun; until then nothing is told of it.

    With `known_names` it stands where any JSON may stand: only an object with the keys of a call, arguments among
    them, that names one of these is a call. Once `is_call`, an object that breaks off or goes wrong is still one.
    """

    def __init__(self, *, known_names: Collection[str] | None) -> None:
        self.status: Status = "open"
        self.is_call = False
        self._known_names = known_names
        self._members = MemberReader()
        self._name: str | None = None
        self._written_name: list[str] = []
        self._arguments_key: str | None = None
        self._arguments: list[str] = []
        """Those that could not be told yet."""
        self._has_all = False
        """The arguments have ended; whatever else goes by their name is skipped."""
        self._is_text = False
        """The arguments are written as a string that holds their JSON."""
        self._is_waiting = True
        """Of the arguments nothing may be told yet, even if the name is known."""

    def read(self, text: str, at: int) -> tuple[list[CallPiece], int]:
        """What `text` from `at` on adds to the call, and where the object ends in it, if it does."""
        pieces: list[CallPiece] = []
        while at < len(text) and self.status == "open":
            value, at = self._members.read(text, at)
            if value is not None:
                self._take(value, pieces)
            elif self._members.status != "open":
                self._end(pieces)
        return pieces, at

    def __repr__(self) -> str:
        return f"CallReader({self._name!r}, {self.status})"

    def _take(self, value: ValuePiece, pieces: list[CallPiece]) -> None:
        if value.key == "name" and self._name is None:
            self._take_name(value)
        elif value.key in ARGUMENT_KEYS and not self._has_all and self._arguments_key in (None, value.key):
            self._take_arguments(value)
        elif self._known_names is not None and value.key not in _CALL_KEYS and not self.is_call:
            self.status = "failed"
        if self.status == "open" and self._name is not None and not self._is_waiting:
            self._tell(pieces)

    def _take_name(self, value: ValuePiece) -> None:
        self._written_name.append(value.text)
        if not value.is_last:
            return
        self._name = string_value("".join(self._written_name)) or None
        if self._name is None or (self._known_names is not None and self._name not in self._known_names):
            self.status = "failed"

    def _take_arguments(self, value: ValuePiece) -> None:
        if self._arguments_key is None:
            self._arguments_key = value.key
            self._is_text = value.text.startswith(('"', "n"))
            if not value.text.startswith(("{", '"', "null")):
                self.status = "failed"
        self._arguments.append(value.text)
        self._has_all = value.is_last
        if not self._is_text:
            self._is_waiting = False
        elif value.is_last:
            written = "".join(self._arguments)
            self._arguments = ["{}" if written == "null" else string_value(written) or "{}"]
            self._is_waiting = False

    def _tell(self, pieces: list[CallPiece]) -> None:
        arguments = "".join(self._arguments)
        self._arguments.clear()
        if not self.is_call:
            pieces.append(CallPiece(self._name, arguments))
            self.is_call = True
        elif arguments:
            pieces.append(CallPiece(None, arguments))

    def _end(self, pieces: list[CallPiece]) -> None:
        """The object is over, or can be none any more."""
        if not self.is_call and self._members.status == "complete" and self._may_lack_arguments():
            pieces.append(CallPiece(self._name, "{}"))
            self.is_call = True
        self.status = "complete" if self.is_call else "failed"

    def _may_lack_arguments(self) -> bool:
        return self._name is not None and self._arguments_key is None and self._known_names is None

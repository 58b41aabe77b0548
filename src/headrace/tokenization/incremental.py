"""Streaming detokenization: tokens in, text out as soon as it is certain.

One decoder for each way of writing text in tokens. Whatever the pieces in which the tokens come, the texts joined equal
the decoding of the whole; `WindowDecoder`, for rules this module does not know, keeps that as far as those rules allow.
"""

import codecs
from collections.abc import Callable, Sequence
from functools import partial

REPLACEMENT = "\ufffd"


class BytesDecoder:
    """For byte-level vocabularies: the tokens' bytes through an incremental UTF-8 decoder."""

    __slots__ = ("_half", "_table", "_texts")

    def __init__(self, table: Sequence[bytes], texts: dict[int, str]) -> None:
        """`table` holds each token's bytes, by id; ids outside it add nothing.

        `texts`, empty at first and shared by the decoders of one table, comes to hold what tokens are by themselves.
        """
        self._table = table
        self._texts = texts
        self._half = b""
        """The beginning of a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1 and not self._half:
            text = self._texts.get(token_ids[0])
            return self._decode_first(token_ids[0]) if text is None else text
        table, num_tokens = self._table, len(self._table)
        return self._decode(b"".join([table[i] for i in token_ids if 0 <= i < num_tokens]))

    def _decode_first(self, token_id: int) -> str:
        """Of a token that no half character stands before, so that its text may be remembered."""
        if not 0 <= token_id < len(self._table):
            return ""
        text = self._decode(self._table[token_id])
        if not self._half:
            self._texts[int(token_id)] = text
        return text

    def _decode(self, data: bytes, *, is_final: bool = False) -> str:
        data = self._half + data
        text, num_used = codecs.utf_8_decode(data, "replace", is_final)
        self._half = data[num_used:]
        return text

    def finish(self) -> str:
        return self._decode(b"", is_final=True)


def bytes_decoders(table: Sequence[bytes]) -> Callable[[], BytesDecoder]:
    """What makes decoders for `table`."""
    return partial(BytesDecoder, table, {})


class PiecesDecoder:
    """For SentencePiece-style vocabularies with byte fallback.

    A run of raw bytes is one unit there: if any of it is not UTF-8, every byte of the run becomes U+FFFD. So a run is
    held back until another token ends it.
    """

    __slots__ = ("_has_begun", "_pieces", "_raw", "_strips_leading_space")

    def __init__(self, pieces: Sequence[str | int | None], *, strips_leading_space: bool) -> None:
        """`pieces` holds, by id, a token's text, or the byte it stands for, or None for a token to skip."""
        self._pieces = pieces
        self._raw = bytearray()
        self._strips_leading_space = strips_leading_space
        self._has_begun = False

    def push(self, token_ids: Sequence[int]) -> str:
        pieces, num_pieces = self._pieces, len(self._pieces)
        texts: list[str] = []
        for token_id in token_ids:
            piece = pieces[token_id] if 0 <= token_id < num_pieces else None
            if isinstance(piece, int):
                self._raw.append(piece)
            elif piece is not None:
                texts += (self._end_run(), piece)
        return self._begin("".join(texts))

    def finish(self) -> str:
        return self._begin(self._end_run())

    def _end_run(self) -> str:
        if not self._raw:
            return ""
        try:
            text = self._raw.decode()
        except UnicodeDecodeError:
            text = REPLACEMENT * len(self._raw)
        self._raw.clear()
        return text

    def _begin(self, text: str) -> str:
        if self._has_begun or not text:
            return text
        self._has_begun = True
        return text.removeprefix(" ") if self._strips_leading_space else text


class WindowDecoder:
    """For any other rules: decodes a window of recent tokens twice, without and with the new ones, and takes the
    difference. Text that ends in U+FFFD may be half a character and waits.
    """

    __slots__ = ("_decode", "_emitted", "_token_ids", "_window_start", "_window_text_end")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._emitted: list[str] = []
        self._window_start = 0
        self._window_text_end = 0

    def push(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        self._token_ids += token_ids
        known = self._decode(self._token_ids[self._window_start : self._window_text_end])
        text = self._decode(self._token_ids[self._window_start :])
        if len(text) <= len(known) or text.endswith(REPLACEMENT) or not text.startswith(known):
            return ""
        self._window_start, self._window_text_end = self._window_text_end, len(self._token_ids)
        self._emitted.append(text[len(known) :])
        return self._emitted[-1]

    def finish(self) -> str:
        """Where the rules rewrote text that was given out already, nothing can be taken back and the rest is kept."""
        whole, emitted = self._decode(self._token_ids), "".join(self._emitted)
        return whole[len(emitted) :]

"""What reading somebody else's JSON or MessagePack can raise. Pure."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's own errors, and two that it lets through: text that is no UTF-8, and values nested too deeply."""

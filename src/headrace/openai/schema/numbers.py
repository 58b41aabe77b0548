"""Integers as the API bounds them. Everything past the wire is 64 bits wide at most."""

from typing import Annotated, TypeAlias

import msgspec

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

TokenCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]

TokenCountOrZero: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""A token id fits 32 bits; whether the model has it is the engine's to say."""

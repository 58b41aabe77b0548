"""What keeps one client's prompts apart from another's in the prefix cache."""

from typing import Annotated, TypeAlias

import msgspec

CacheSalt: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=1024,
        description="Only requests with the same salt share what the prefix cache holds",
    ),
]

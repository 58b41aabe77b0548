"""YAML as people write it: whatever is wrong in it is one kind of error."""

import yaml

_CONSTRUCTION_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML lets through of values that only look right, such as the date 2024-99-99, and of lists too deep."""


def read_yaml(text: str) -> object:
    """The one document in `text`, of plain types. Raises yaml.YAMLError."""
    try:
        return yaml.safe_load(text)
    except _CONSTRUCTION_ERRORS as error:
        raise yaml.YAMLError(f"a value in it is not what it looks like ({error})") from error

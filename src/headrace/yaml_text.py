"""YAML as people write it: whatever is wrong in it is one kind of error."""

import yaml

_CONSTRUCTION_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML lets through of values that only look right, such as the date 2024-99-99, and of lists too deep."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: PyYAML would let the last win, and ignore the first."""

    def compose_mapping_node(self, anchor: dict[object, yaml.Node]) -> yaml.MappingNode:  # typed as the stubs have it
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} stands there twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node


def read_yaml(text: str) -> object:
    """The one document in `text`, of plain types. Raises yaml.YAMLError, also for a key that a mapping has twice."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe one
    except _CONSTRUCTION_ERRORS as error:
        raise yaml.YAMLError(f"a value in it is not what it looks like ({error})") from error

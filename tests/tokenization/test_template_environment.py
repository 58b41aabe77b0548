"""What our environment decides sooner is what Jinja's own sandbox decides."""

from collections import OrderedDict
from collections.abc import Callable

import jinja2.runtime
import jinja2.sandbox
import pytest
from jinja2.utils import Namespace

from headrace.tokenization.template_environment import TemplateEnvironment

_OURS = TemplateEnvironment()
_SANDBOX = jinja2.sandbox.ImmutableSandboxedEnvironment()

_FIELDS = {"role": "user", "items": ["shadowed"], "_private": 1, "__class__": "mine", "get": 2, "": 3, "content": None}
_OTHERS = ["role", "missing", "_private", "content", "", "mro", "__globals__", "gi_frame", "items", "first"]


def _loop() -> jinja2.runtime.LoopContext:
    loop = jinja2.runtime.LoopContext(["a", "b", "c"], undefined=jinja2.Undefined)
    next(loop)
    next(loop)
    return loop


_VALUES: dict[str, Callable[[], object]] = {
    "dict": lambda: _FIELDS,
    "mapping": lambda: OrderedDict(_FIELDS),
    "text": lambda: "some text",
    "list": lambda: ["a"],
    "tuple": lambda: ("a",),
    "number": lambda: 1.5,
    "none": lambda: None,
    "loop": _loop,
    "namespace": lambda: Namespace(role="user"),
    "undefined": lambda: jinja2.Undefined(name="nothing"),
    "type": lambda: str,
    "function": lambda: _loop,
}


@pytest.mark.parametrize("make", _VALUES.values(), ids=_VALUES)
def test_attributes_are_those_of_the_sandbox(make: Callable[[], object]) -> None:
    names = sorted({*dir(make()), *_FIELDS, *_OTHERS})
    assert [_seen(_OURS, make(), name) for name in names] == [_seen(_SANDBOX, make(), name) for name in names]


def _seen(environment: jinja2.sandbox.SandboxedEnvironment, obj: object, name: str) -> tuple[str, str, object]:
    """What a template gets, as far as two that were made apart can be compared."""
    try:
        value = environment.getattr(obj, name)
    except Exception as error:  # noqa: BLE001 - what is raised is compared
        return name, type(error).__name__, str(error)
    if isinstance(value, jinja2.Undefined):
        return name, type(value).__name__, (value._undefined_name, value._undefined_message, value._undefined_exception)
    is_plain = value is None or isinstance(value, str | int | float | list | tuple)
    return name, type(value).__name__, value if is_plain else getattr(value, "__qualname__", "")


@pytest.mark.parametrize(
    "template",
    [
        "{{ message.pop('role') }}",
        "{{ message.update(x=1) }}",
        "{{ message.__class__.__mro__ }}",
        "{{ text.__class__.__mro__ }}",
        "{{ text.format.__globals__.x }}",
        "{{ '{0.__class__.__mro__}'.format(message) }}",
        "{% for x in [1] %}{{ loop._iterator.x }}{% endfor %}",
        "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
    ],
)
def test_what_the_sandbox_forbids_stays_forbidden(template: str) -> None:
    message = {"role": "user"}
    for environment in (_OURS, _SANDBOX):
        with pytest.raises(jinja2.TemplateError):
            environment.from_string(template).render(message=message, text="text")
    assert message == {"role": "user"}

"""What a future can carry of what a call has raised."""

from headrace.errors import HeadraceError


def raisable(error: BaseException, *, kind: type[HeadraceError] = HeadraceError, what: str = "it") -> Exception:
    """`error`, or one of `kind` saying that `what` failed, for what no future can raise or no caller expects: a
    StopIteration, and what is no Exception, such as a Rust library's panic."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    ours = kind(f"{what} failed: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours

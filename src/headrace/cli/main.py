"""The `headrace` command: picks the subcommand and turns our errors into one line and an exit status.

Exit status: 0 done, 1 failed, 2 the command line or a setting is wrong, 130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from headrace._version import __version__
from headrace.cli.output import discard_stdout, is_failed_write, prepare_streams
from headrace.errors import HeadraceError, SettingsError

# A command's module loads only when it is chosen: the gateway must not pay for the engine's imports.
_COMMANDS = {
    "serve": ("headrace.cli.serve", "serve a model with the OpenAI API"),
    "gateway": ("headrace.cli.gateway", "route to many engines, tokenizing once"),
    "keys": ("headrace.cli.keys", "add, list and revoke the gateway's API keys"),
    "demo": ("headrace.cli.demo", "two engines with the demo model, a gateway, and one chat"),
    "tokenize": ("headrace.cli.tokenize", "the token ids of a text or a chat"),
    "bench": ("headrace.cli.bench", "measure tokenization, the event loop, and engine and gateway beside their peers"),
    "replay": ("headrace.cli.replay", "what routing policies would have made of recorded requests"),
    "top": ("headrace.cli.top", "what a gateway does, live"),
    "config": ("headrace.cli.config", "print every setting and where its value came from"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit status."""
    prepare_streams()
    arguments = _parser().parse_args(argv)
    # The tokenizers library would otherwise spread each batch over all cores, the event loop's and the engine's too.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        run = importlib.import_module(_COMMANDS[arguments.command][0]).run
        status = int(run(arguments.arguments))
        sys.stdout.flush()  # here, where a reader that has left is no traceback
        return status
    except SettingsError as error:
        print(f"headrace: {error.message}", file=sys.stderr)
        return 2
    except HeadraceError as error:
        print(f"headrace: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        if not is_failed_write(error):
            raise
        discard_stdout()
        if not isinstance(error, BrokenPipeError):  # `| head` has seen enough
            print(f"headrace: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:10}{text}" for name, (_, text) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Everything between an LLM client's socket and the model's KV cache.",
        epilog=f"commands:\n{listing}\n\nheadrace COMMAND --help tells a command's flags.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`headrace gateway --endpoint URL ...`: one door to many engines."""

import argparse
from collections.abc import Sequence

from headrace.cli.launch import Sources, parser_of, run_in_event_loop
from headrace.gateway.settings import GatewaySettings

COMPONENTS = {"gateway": GatewaySettings}


def run(argv: Sequence[str]) -> int:
    """Route until SIGTERM or Ctrl-C; the exit status."""
    from headrace.gateway.run import run_gateway  # after parsing: `--help` needs none of it

    arguments = parser().parse_args(argv)
    settings = Sources(arguments).resolve(GatewaySettings, section="gateway").settings
    return run_in_event_loop(run_gateway(settings), arguments)


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    return parser_of("gateway", description="Route requests to many engines, tokenizing once.", components=COMPONENTS)

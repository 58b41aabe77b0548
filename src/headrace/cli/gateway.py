"""`headrace gateway --endpoint URL ...`: one door to many engines."""

import argparse
from collections.abc import Sequence

from headrace.cli.launch import Sources, parser_of, run_in_event_loop
from headrace.gateway.admission.settings import AdmissionSettings
from headrace.gateway.settings import GatewaySettings
from headrace.tokenization.settings import TokenizationSettings

COMPONENTS = {"gateway": GatewaySettings, "admission": AdmissionSettings, "tokenization": TokenizationSettings}


def run(argv: Sequence[str]) -> int:
    """Route until SIGTERM or Ctrl-C; the exit status."""
    from headrace.gateway.run import run_gateway  # after parsing: `--help` needs none of it

    arguments = parser().parse_args(argv)
    sources = Sources(arguments)
    resolved = sources.resolve(GatewaySettings, section="gateway")
    gateway = run_gateway(
        resolved.settings,
        admission=sources.resolve(AdmissionSettings, section="admission").settings,
        tokenization=sources.resolve(TokenizationSettings, section="tokenization").settings,
        settings_file=arguments.config if resolved.is_from_file("endpoint") else None,
        log_level=arguments.log_level,
        log_format=arguments.log_format,
    )
    return run_in_event_loop(gateway, arguments)


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    return parser_of("gateway", description="Route requests to many engines, tokenizing once.", components=COMPONENTS)

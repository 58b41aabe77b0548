"""The server's side of TLS: its certificate, what it asks of clients, and a certificate renewed while it serves."""

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Iterator
from functools import partial

from headrace.errors import SettingsError
from headrace.server.settings import ServerSettings

_LOG = logging.getLogger(__name__)


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """None without a certificate. Raises SettingsError, naming the field, for files that cannot be used."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    _load_certificate(context, settings)
    if settings.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(settings.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"ssl_ca_certs {settings.ssl_ca_certs!r} cannot be used: {error}", param="ssl_ca_certs"
            ) from error
    return context


@contextlib.contextmanager
def renewed_by_hangup(context: ssl.SSLContext | None, settings: ServerSettings) -> Iterator[None]:
    """While the block runs, SIGHUP reads certificate and key again, for connections that come after it.

    Files that cannot be used leave the old ones and a line in the log. For the main thread, inside its running loop.
    """
    if context is None:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, partial(_renew, context, settings))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _renew(context: ssl.SSLContext, settings: ServerSettings) -> None:
    try:
        tls_context(settings)  # a key that does not fit would leave half of the new pair in `context`
        _load_certificate(context, settings)
    except SettingsError as error:
        _LOG.error("the TLS certificate stays as it was: %s", error)
    else:
        _LOG.info("the TLS certificate was read again from %s", settings.ssl_certfile)


def _load_certificate(context: ssl.SSLContext, settings: ServerSettings) -> None:
    assert settings.ssl_certfile is not None
    try:
        # Without a password OpenSSL would ask for one on the terminal, and the server would hang there.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        files = " with ".join(repr(name) for name in (settings.ssl_certfile, settings.ssl_keyfile) if name)
        raise SettingsError(f"ssl_certfile {files} cannot be used: {error}", param="ssl_certfile") from error

"""For all tests."""

import hypothesis  # noqa: F401 - its plugin else imports it at exit, where CPython 3.11 fails on deeply nested stacks

"""For all tests."""

import hypothesis  # its plugin else imports it at exit, where CPython 3.11 fails on deeply nested stacks

# A deadline measures the machine that others use too; pytest-timeout ends what hangs.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")

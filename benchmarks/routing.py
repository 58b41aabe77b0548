"""Policies on a trace, and how long a routing decision takes for prompts of 128k tokens: `headrace bench routing`.

.venv/bin/python benchmarks/routing.py [--trace FILE] [--quick] [--json]
"""

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "routing", *sys.argv[1:]]))

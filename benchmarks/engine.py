"""Our engine beside the installed peers, then its front end alone: `headrace bench engine` and `headrace bench front`.

.venv/bin/python benchmarks/engine.py [--quick] [--json] [--rounds N] [--engines NAMES] [--only TEXT] [--model DIR]
"""

import sys
from pathlib import Path

from headrace.cli.main import main

DEMO = Path(__file__).resolve().parents[1] / "models" / "demo"

if __name__ == "__main__":
    status = main(["bench", "engine", *sys.argv[1:]])
    as_json = ["--json"] if "--json" in sys.argv else []
    sys.exit(status or main(["bench", "front", "--model", str(DEMO), *as_json]))

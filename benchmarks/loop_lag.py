"""What tokenization does to the event loop: `headrace bench loop` with the real tokenizer, if it is there.

.venv/bin/python benchmarks/loop_lag.py [--quick] [--json] [--rounds N] [--tokenizer PATH]
"""

import sys
from pathlib import Path

from headrace.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[1]
REAL = REPOSITORY.parent / "shared" / "data" / "qwen2.5_tokenizer.json"


def tokenizer() -> Path:
    return REAL if REAL.is_file() else REPOSITORY / "models" / "demo"


if __name__ == "__main__":
    sys.exit(main(["bench", "loop", "--tokenizer", str(tokenizer()), *sys.argv[1:]]))

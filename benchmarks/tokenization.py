"""How fast texts become ids: `headrace bench tokenization`, with the real tokenizer beside the repository if there.

.venv/bin/python benchmarks/tokenization.py [--quick] [--json] [--rounds N] [--only TEXT] [--tokenizer PATH]
"""

import sys
from pathlib import Path

from headrace.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[1]
REAL = REPOSITORY.parent / "shared" / "data" / "qwen2.5_tokenizer.json"


def tokenizer() -> Path:
    return REAL if REAL.is_file() else REPOSITORY / "models" / "demo"


if __name__ == "__main__":
    sys.exit(main(["bench", "tokenization", "--tokenizer", str(tokenizer()), *sys.argv[1:]]))

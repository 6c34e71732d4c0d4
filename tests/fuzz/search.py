"""Look for inputs that a verb does not refuse in one sentence: python -m tests.fuzz.search [SECONDS] [SEED] [MOST INPUTS].

Each failure is printed as a line of JSON, to be added to corpus.jsonl once it is mended; failures at the same place are counted, not repeated.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from tests.fuzz.harness import VERBS, kind_of, limit_memory, run
from tests.fuzz.inputs import draw, make_bases

_MEMORY_BYTES = 12 << 30
"""Of address space, of which the compiled code and the libraries take some."""


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    most = int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize
    logging.disable()
    limit_memory(_MEMORY_BYTES)
    dice, codes, seen = random.Random(seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as root:
        bases = Path(root) / "bases"
        bases.mkdir()
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            make_bases(bases)
        end = time.monotonic() + seconds
        while time.monotonic() < end and sum(codes.values()) < most:
            base, operations = draw(dice, bases)
            verb = dice.choice(VERBS[kind_of(base)])
            folder = Path(root) / "one"
            outcome = run(bases, folder, base, operations, verb)
            shutil.rmtree(folder)
            codes[str(outcome.code)] += 1
            if outcome.fault:
                place = _place(outcome.fault)
                seen[place] += 1
                if seen[place] == 1:
                    print(json.dumps({"base": base, "operations": operations, "verb": verb}))
                    print(f"    {place}: {outcome.fault[-700:]}", flush=True)
    print(
        f"seed {seed}: {sum(codes.values()):,} inputs, exit codes {dict(sorted(codes.items()))}, {sum(seen.values())} failures at {len(seen)} places"
    )
    for place, count in seen.most_common():
        print(f"{count:6} {place}")
    return 1 if seen else 0


def _place(fault: str) -> str:
    """The last line of ours in a traceback; without one the beginning of the fault."""
    lines = re.findall(r'File "[^"]*?/((?:tileprof|analysis|viz)/[^"]*)", line (\d+)', fault)
    return " ".join(lines[-1]) if lines else fault[:80]


if __name__ == "__main__":
    sys.exit(main())

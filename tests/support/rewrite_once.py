"""Lets each worker of a test run rewrite the assertions of a share of the test modules.

All workers collect all modules, in the same order and at the same time. In a fresh clone each would rewrite each
module, which takes half of the processor time of a collection.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_a_share(config: pytest.Config, number: int, workers: int) -> None:
    """Write the cached code of every ``workers``-th test module that ``config`` will collect, beginning at
    ``number``, unless the cache has it.

    A worker that comes to a module which another has not rewritten yet rewrites it.
    """
    state = config.stash[rewrite.assertstate_key]
    modules = sorted(module for argument in config.args for module in Path(argument).rglob("test_*.py"))
    for module in modules[number::workers]:
        cached = rewrite.get_cache_dir(module) / f"{module.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(module, cached) is None:
            cached.parent.mkdir(exist_ok=True)
            source_hash, code = rewrite._rewrite_test(module, config)
            rewrite._write_pyc(state, code, source_hash, cached)

"""Names of kernels as tables keep them: demangled, without parameters, and no longer than they must be."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from tileprof.record.model.tiles.convolutions.library_kernels import parse_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST: Final = 160


def demangled(names: Sequence[str]) -> list[str]:
    """Return demangled names where ``c++filt`` is there, else the names."""
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return list(names)
    out = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True)
    return out.stdout.splitlines()


def readable(names: Sequence[str]) -> dict[str, str]:
    """Return demangled names without parameters, cut to a length."""
    short = {}
    for name, full in zip(names, demangled(names), strict=True):
        plain = re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", full.removeprefix("void "))
        plain = plain.replace("at::native::(anonymous namespace)::", "at::native::")
        # A name must say as much as the mangled one; where a cut loses the tile, more of it stays.
        candidates = (plain[:_MOST], name[: 2 * _MOST], name)
        short[name] = next(some for some in candidates if parse_name(some) == parse_name(name))
    return short

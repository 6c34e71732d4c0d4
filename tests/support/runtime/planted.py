"""Plants faults into sources that are compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Patch = Callable[[str, str], str]
"""Function of a source's name and text that returns the text to compile."""


def changed(text: str, old: str, new: str, *, first: bool = False) -> str:
    """Return ``text`` with ``new`` in place of ``old``, which must stand there once; white space may differ.

    With ``first``, the first of several places is changed. Fails if there is no such place, so that no fault is lost
    when a source changes.
    """
    places = list(re.finditer(r"\s*".join(map(re.escape, "".join(old.split()))), text))
    assert len(places) == 1 or (first and places), f"{old!r} stands there {len(places)} times"
    begin, end = places[0].span()
    return text[:begin] + new + text[end:]


def replaced(file: str, *changes: tuple[str, str]) -> Patch:
    """Return a patch that changes words in one file; see `changed`."""

    def patch(name: str, text: str) -> str:
        for old, new in changes if name == file else ():
            text = changed(text, old, new)
        return text

    return patch


def together(*patches: Patch) -> Patch:
    """Return a patch that applies several patches in turn."""

    def patch(name: str, text: str) -> str:
        for one in patches:
            text = one(name, text)
        return text

    return patch


def without_effect(faults: Mapping[str, Patch], texts: Mapping[str, str]) -> list[str]:
    """Return the names of faults that change none of the sources ``texts``; fails if the place of a fault is missing
    (`changed`).

    The gate checks this for all faults, since it plants only some of them.
    """
    return [name for name, patch in faults.items() if all(patch(file, text) == text for file, text in texts.items())]


def gate_third(faults: Iterable[object]) -> list[Any]:
    """Return the names or numbers as parameters of a test.

    The gate plants every third fault, the nightly run all.
    """
    return [pytest.param(name, marks=[pytest.mark.nightly] if n % 3 else []) for n, name in enumerate(faults)]

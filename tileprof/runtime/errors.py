"""The errors that can occur on the device, in words."""

from __future__ import annotations

from tileprof.errors import UserError


class WaitTimeoutError(UserError):
    """A wait on the device did not end; the message names stage, tile, semaphore, the values seen and expected."""

    exit_code = 1


def gave_up(stage: int, name: str, tile: int, semaphore: int, value: int, expected: int, timeout_ns: int) -> str:
    """Return the sentence of a `WaitTimeoutError`."""
    return (
        f"stage {stage} ({name}), tile {tile}: semaphore {semaphore} did not reach its value in "
        f"{timeout_ns / 1e9:g} s; seen {value}, expected {expected}. The results of this run are wrong. "
        "`tileprof run` executes the policy on the CPU and says why."
    )

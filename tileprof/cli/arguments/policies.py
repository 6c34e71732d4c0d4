"""Policies as verbs are given them: files of either kind, checked as far as that goes without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tileprof.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from tileprof.policy.format import Policy


def load(name: str | Path, size: int | None = None) -> Policy:
    """Return the policy in a file, JSON or dependencies written by hand (.dep); raises `UserError` that begins with the
    file's name.

    ``size``: of a policy for a range of sizes the one that is meant; None: the recorded one. Expressions that leave
    their grid are found here: whatever works with the policy later knows no file.
    """
    from tileprof.policy.format import PolicyError, load_policy  # noqa: PLC0415 - as above
    from tileprof.policy.format.lowering import lower  # noqa: PLC0415 - as above
    from tileprof.policy.format.symbolic import load_symbolic  # noqa: PLC0415 - as above
    from tileprof.policy.synthesis.dependency_file import load_dependencies  # noqa: PLC0415 - heavy, and not needed for --help

    if str(name).endswith(".dep"):
        return load_dependencies(name)
    symbolic = load_symbolic(name)
    try:
        policy = load_policy(name) if symbolic is None else symbolic.at(size)
    except UserError as error:
        raise (PolicyError(f"{name}: {error}") if symbolic is not None else error) from None
    if size is not None and symbolic is None:
        raise UserError(f"{name} is a policy of one size: --at is for policies from `tileprof export --for`")
    try:
        lower(policy)
    except UserError as error:
        raise PolicyError(f"{name}: {error}") from None
    return policy

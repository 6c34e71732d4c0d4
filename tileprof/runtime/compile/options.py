"""The options of ``torch.compile(..., options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tileprof.errors import UserError
from tileprof.runtime.schedulers import scheduler


@dataclass(frozen=True, slots=True)
class Options:
    """See `tileprof.runtime.compile`; `of` raises `UserError` for what is none."""

    use: str = "measured"
    scheduler: str = "auto"
    policies: tuple[Path, ...] = ()
    frozen: bool = False
    remeasure: bool = False
    later: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any] | None) -> Options:
        values = dict(values or {})
        names = {f.name for f in fields(cls)}
        if strange := sorted(set(values) - names):
            raise UserError(f"there is no option {strange[0]!r}; known: {', '.join(sorted(names))}")
        policies = values.get("policies", ())
        paths = [policies] if isinstance(policies, str | Path) else policies
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str | Path) for path in paths):
            raise UserError(f"policies is {policies!r}; it is a list of policy files")
        flags = {name: values.get(name, False) for name in ("frozen", "remeasure", "later")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise UserError(f"{name} is {value!r}; it is True or False")
        options = cls(
            values.get("use", "measured"), values.get("scheduler", "auto"), tuple(Path(path) for path in paths), **flags
        )
        if options.use not in ("measured", "always", "never"):
            raise UserError(f"use is {options.use!r}; it is measured, always or never")
        if options.scheduler != "auto" and not scheduler(options.scheduler).correct:
            raise UserError(f"{options.scheduler} computes wrong results, for timing; take another scheduler")
        return options

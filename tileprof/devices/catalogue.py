"""Finding a GPU: by name in the package's own list, or in a user's JSON or TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tileprof.devices.device import Device, close_match
from tileprof.errors import UserError
from tileprof.named_file import read_named
from tileprof.nesting import MOST_LEVELS, NestingError, check_levels, parse_json

_FILE_LIMIT_BYTES = 1 << 20  # a device description is a kilobyte; do not read a trace or a video into memory


def names() -> list[str]:
    """Return the GPUs tileprof knows, oldest first."""
    return list(_catalogue()["device"])


def get(name: str | Path) -> Device:
    """Return the device of this name (case, blanks and dashes do not matter), or described in this file.

    A file is a path ending in ``.json`` or ``.toml`` with the keys of `Device`; with ``like = "H200"`` it
    gives only what differs from a GPU that tileprof knows. Raises UserError for an unknown name (with close
    matches) and for a file that is missing, unreadable or wrong.
    """
    text = str(name)
    return _from_file(Path(text)) if text.endswith((".json", ".toml")) else _device_of_catalogue(text)


def of_driver(name: str) -> Device:
    """Return the description of a GPU by the name that its driver gives, as ``NVIDIA H200``.

    Raises `UserError` where none fits.
    """
    folded = _fold(name)
    fitting = [device_name for device_name in names() if all(_fold(word) in folded for word in device_name.split("-"))]
    if not fitting:
        raise UserError(
            f"{name} is not among the known devices ({', '.join(names())}): nothing can be predicted for it"
        )
    return get(max(fitting, key=len))


def _device_of_catalogue(name: str) -> Device:
    spellings = _spellings()
    match = spellings.get(_fold(name))
    if match is None:
        raise UserError(
            f"no device {name!r}{close_match(name, names())}\n"
            f"known: {', '.join(names())}; or give a .json or .toml file that describes yours"
        )
    return Device.from_dict(_all_keys(match), f"device {match}")


def _fold(name: str) -> str:
    folded = "".join(c for c in name.casefold() if c.isalnum())
    return folded.removeprefix("nvidia")


@cache
def _catalogue() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("devices.toml").read_text(encoding="utf-8"))


@cache
def _spellings() -> dict[str, str]:
    return {
        _fold(spelling): name
        for name, entry in _catalogue()["device"].items()
        for spelling in (name, *entry.get("aliases", ()))
    }


def _all_keys(name: str) -> dict[str, Any]:
    """Return all keys of a known device: its own, and those of the device it is like or of its architecture."""
    entry = _catalogue()["device"][name]
    own = {key: value for key, value in entry.items() if key not in ("like", "aliases")} | {"name": name}
    if "like" in entry:
        return _with_own_keys(_all_keys(entry["like"]), own)
    architecture = _catalogue()["architecture"][entry["architecture"]]
    return _with_own_keys({**_catalogue()["every"], **architecture}, own)


def _with_own_keys(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``own`` keys on top; what was measured or cited for a replaced number goes with it."""
    sources = {key: text for key, text in _each(base.get("sources", {})).items() if key not in own}
    sustained = {
        key: value
        for key, value in base.get("sustained", {}).items()
        if ("dram_bytes_per_s" if key == "dram_bytes_per_s" else "peak_flops") not in own
    }
    merged = {**base, "sustained": sustained, **own}
    return {**merged, "sources": {**sources, **_each(own.get("sources", {}))}}


def _each(sources: Mapping[str, str]) -> dict[str, str]:
    return {key.strip(): text for keys, text in sources.items() for key in keys.split(",")}


def _from_file(path: Path) -> Device:
    values = _read(path)
    values.setdefault("name", path.stem)
    like = values.pop("like", None)
    if like is not None:
        if not isinstance(like, str):
            raise UserError(f"{path}: like is {like!r}, expected the name of a device ({', '.join(names())})")
        for key in ("sources", "sustained"):
            if not isinstance(values.get(key, {}), dict):
                raise UserError(f"{path}: {key} is {values[key]!r}, expected a table")
        values = _with_own_keys(_device_of_catalogue(like).to_dict(), values)
    return Device.from_dict(values, str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_named(path, _FILE_LIMIT_BYTES)
        if len(data) > _FILE_LIMIT_BYTES:
            raise UserError(f"{path}: larger than {_FILE_LIMIT_BYTES} bytes, so not a device description")
        text = data.decode("utf-8")
        values = parse_json(text) if path.suffix == ".json" else _parse_toml(text)
    except OSError as error:
        raise UserError(f"cannot read the device file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a table with the keys of a device, found {type(values).__name__}")
    return values


def _parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a file; its brackets are counted first, since Python's reader calls itself once
    per level.
    """
    if text.count("[") + text.count("{") > 4 * MOST_LEVELS:  # a description has a dozen
        raise NestingError
    values = tomllib.loads(text)
    check_levels(values)  # dotted keys nest without brackets
    return values

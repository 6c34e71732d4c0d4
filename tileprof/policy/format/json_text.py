"""The text of a policy file as JSON: strictly, in bounded memory, and fast where tables are long."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tileprof.errors import UserError
from tileprof.named_file import read_named
from tileprof.nesting import parse_json

_MOST_BYTES: Final = 256 * 2**20
_MOST_QUOTED: Final = 150
"""Characters of what a file holds in a message."""
_TYPES: Final = {
    "object": "an object", "array": "a list", "string": "a text", "number": "a number", "integer": "a whole number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip
_MOST_ID: Final = 2**31 - 1
_ID: Final = {"type": "integer", "minimum": 0, "maximum": _MOST_ID}
"""An element of a list of numbers in the schema."""


def read_text(path: Path) -> str:
    """Return the text of a file, empty for a device; raises `UserError` where it is too large, `OSError` and
    `ValueError`.
    """
    text = b"" if path.stat().st_size > _MOST_BYTES else read_named(path, _MOST_BYTES)
    if max(path.stat().st_size, len(text)) > _MOST_BYTES:
        raise UserError(f"larger than {_MOST_BYTES >> 20} MiB; a policy is not")
    return text.decode("utf-8-sig")


def parsed(text: str) -> Any:
    """Return JSON as its standard has it: Python's reader takes numbers that are none, and the last of several equal
    keys.

    Raises `UserError` for these, `ValueError` for what is no JSON or nested too deeply.
    """
    return parse_json(text, object_pairs_hook=_each_once, parse_constant=_finite, parse_float=_finite)


def schema_error(value: Any) -> Any:
    """Return the `jsonschema.ValidationError` that says best what is wrong with a parsed policy; None where
    nothing is.
    """
    import jsonschema  # noqa: PLC0415 - slow to import

    return jsonschema.exceptions.best_match(_validator().iter_errors(value))


def violation(error: Any) -> str:
    """Return a sentence for what `schema_error` found: where in the policy, what stands there, and what is expected."""
    place = _cut(error.json_path.removeprefix("$").removeprefix(".")) or "the policy"
    fields = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    match error.validator:
        case "additionalProperties" if error.validator_value is False:
            unknown = next(key for key in error.instance if key not in fields)
            return (
                f"{place} has a field {_cut(repr(unknown))} that the format does not know; it knows {', '.join(fields)}"
            )
        case "required":
            missing = [repr(key) for key in error.validator_value if key not in error.instance]
            return f"{place} lacks {', '.join(missing)}"
        case "type":
            types = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            expected = " or ".join(_TYPES[name] for name in types)
            return f"{place} is {_shown(error.instance)}; expected {expected}"
        case "enum":
            return f"{place} is {_shown(error.instance)}; expected one of {', '.join(error.validator_value)}"
    message = error.message
    if len(message) > _MOST_QUOTED:
        message = f"{message[:_MOST_QUOTED]} ... ({error.validator} {error.validator_value})"[: 2 * _MOST_QUOTED]
    return f"{place}: {message}"


def _shown(value: Any) -> str:
    """Return a value as it stands in the file, or what it is where it may be long."""
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]} ..."


@cache
def _validator() -> Any:
    """Return the validator of the schema. An integer is one of Python's: 3.0 is not an index of a list."""
    import jsonschema  # noqa: PLC0415 - slow to import

    text = files("tileprof.policy.format").joinpath("policy.schema.json").read_text(encoding="utf-8")
    plain = jsonschema.Draft202012Validator
    types = plain.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict = jsonschema.validators.extend(plain, {"items": _items}, type_checker=types)  # type: ignore[no-untyped-call]  # of the stubs
    return strict(json.loads(text))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise UserError(f"{twice[:80]!r} occurs twice in one object, which is ambiguous")
    return values


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UserError(f"{text[:80]} is not a finite number")
    return number


def _items(checker: Any, items: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Millions of numbers in a table take a minute one by one; the first wrong one is enough."""
    if items != _ID or not isinstance(instance, list):
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import

        yield from Draft202012Validator.VALIDATORS["items"](checker, items, instance, schema)
    elif instance and not (set(map(type, instance)) == {int} and 0 <= min(instance) <= max(instance) <= _MOST_ID):
        wrong = next(n for n, v in enumerate(instance) if type(v) is not int or not 0 <= v <= _MOST_ID)
        yield from checker.descend(instance[wrong], items, path=wrong)

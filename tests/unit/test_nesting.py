"""Texts that are nested too deeply are refused by counting, whatever stack the reader has."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileprof.nesting import MOST_LEVELS, NestingError, check_levels, compile_pattern, levels_of_json, parse_json

WORDS = st.text('[]{}"\\,: \u2028x', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)


def levels(value):
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(levels, inside), default=0)


@given(VALUES)
def test_the_count_is_that_of_the_parsed_value_whatever_strings_hold(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert levels_of_json(text) == levels(value)
        assert parse_json(text) == value


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_as_many_levels_as_are_allowed_are_read_and_one_more_is_not(opening):
    closing = {"[": "]", '{"a":': "}"}[opening]
    parse_json(opening * MOST_LEVELS + "1" + closing * MOST_LEVELS)
    for more in (MOST_LEVELS + 1, 1_000_000):
        with pytest.raises(NestingError, match="too deeply: more than 64 levels"):
            parse_json(opening * more + "1" + closing * more)


@pytest.mark.parametrize("text", ["]]]]" + "[" * 100, '"[', "[" * 65 + '"', '"\\', "\\" * 100 + "[" * 65])
def test_invalid_json_is_refused_too(text):
    with pytest.raises(ValueError, match=r"levels|Expecting|Unterminated|Invalid"):
        parse_json(text)


def test_values_of_other_readers_are_checked_level_by_level():
    value = []
    for _ in range(MOST_LEVELS - 1):
        value = {"a": [1, 2], "b": value}
    check_levels(value)
    with pytest.raises(NestingError):
        check_levels([value, value])


def test_patterns_are_compiled_without_a_warning_and_with_a_bounded_number_of_groups():
    assert compile_pattern("(" * MOST_LEVELS + "x" + ")" * MOST_LEVELS).search("x")
    assert compile_pattern("[[a]")
    with pytest.raises(re.error, match="more than 64 groups"):
        compile_pattern("(" * 5000 + ")" * 5000)

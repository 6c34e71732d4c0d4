import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.packed_values import unpacked
from tileprof.viz.tables.page_values import LONGEST_TEXT, inert_json, pack, printable

exact = st.integers(-(2**52), 2**52)


@settings(deadline=None)
@given(st.lists(exact, max_size=50), st.booleans())
def test_integers_arrive_exactly(values, delta):
    assert unpacked(pack(np.array(values, np.int64), delta=delta)).tolist() == values


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=True), max_size=30))
def test_floats_arrive_with_their_unknowns(values):
    np.testing.assert_array_equal(unpacked(pack(np.array(values, np.float64))), np.array(values))


def test_slowly_changing_columns_become_small():
    assert len(pack(np.arange(100_000), delta=True)["data"]) < 400


@settings(deadline=None)
@given(st.text())
def test_shown_names_hold_nothing_invisible(text):
    terminal_text = printable(text)
    assert terminal_text.isprintable()


def test_bidi_and_control_characters_are_spelled_out():
    assert printable("a\u202eb\x00c\u2028") == "a\\u202eb\\u0000c\\u2028"


def test_long_names_end_with_how_much_is_missing():
    assert printable("x" * (LONGEST_TEXT + 7)).endswith("… (7 more)")


@settings(deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_inert_json_is_the_same_value_without_markup(value):
    text = inert_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_a_number_that_json_has_not_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        inert_json(float("nan"))

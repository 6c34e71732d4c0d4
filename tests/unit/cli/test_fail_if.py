"""Conditions of --fail-if: their meaning, and which are refused."""

import pytest

from tileprof.cli.arguments.fail_if import condition, fact_text
from tileprof.errors import UserError


@pytest.mark.parametrize(
    ("text", "before", "now", "holds"),
    [
        ("time>1.5ms", None, 1.6e6, True),
        ("time>1.5ms", None, 1.4e6, False),
        ("gap>=30%", None, 0.3, True),
        ("gap<30%", None, 0.3, False),
        ("launches>200", None, 201.0, True),
        ("time>+5%", 100.0, 106.0, True),
        ("time>+5%", 100.0, 104.0, False),
        ("time<-5%", 100.0, 94.0, True),
        ("time>+2us", 1000.0, 3500.0, True),
        ("gap>+10%", 0.30, 0.35, False),  # the change of a share is in points: 5 of them
        ("gap>+10%", 0.30, 0.41, True),
        ("launches>+0", 10.0, 11.0, True),
        ("launches>+0", 10.0, 10.0, False),
        ("time>+5%", 0.0, 1.0, True),
        ("bound>1us", None, None, False),
        ("bound>+1us", None, 5000.0, False),
    ],
)
def test_a_condition_holds_where_the_program_is_so(text, before, now, holds):
    assert condition(text, changes=True).holds(now, before) == holds


@pytest.mark.parametrize(
    ("text", "changes", "says"),
    [
        ("gap>30", False, "write 30%"),
        ("gap", False, "write a name, a comparison and a limit"),
        ("speed>3", False, "there is no speed; there are time, gap"),
        ("time>+5%", False, "a change needs two traces"),
        ("time>5", True, "compared with a time"),
        ("gap>3ms", True, "compared with a percentage"),
        ("launches>3us", True, "compared with a number"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_would_be(text, changes, says):
    with pytest.raises(UserError, match=says.replace("+", r"\+")):
        condition(text, changes=changes)


def test_facts_are_shown_in_their_units():
    assert [fact_text("time", 1.5e6), fact_text("gap", 0.25), fact_text("tiles", 12345.0), fact_text("list", None)] == [
        "1.5 ms", "25.0%", "12,345", "unknown",
    ]  # fmt: skip

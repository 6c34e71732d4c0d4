"""Published beside predicted gains: every row is one mark at its values, in its panel."""

import pandas as pd
import pytest
from studies.published_beside_predicted import beside

from tileprof.errors import UserError

TABLE = pd.DataFrame(
    {
        "published": [1.0, 2.0, -3.0, 8.0],
        "predicted": [1.5, 2.0, -1.0, 4.0],
        "policy": ["row", "tile", "row", "tile"],
        "gpu": ["V100", "V100", "A100", "A100"],
        "what": ["a", "b", "c", "d"],
        "tests": [True, False, True, True],
    }
)


def drawing(table=TABLE, **cells):
    how = {"title": "t", "by": "policy", "panel": "gpu", "name": "what", "unit": "%", **cells}
    return beside(table, **how)


def test_every_row_is_a_mark_in_its_panel():
    figure = drawing()
    actual = {
        (t.xaxis, t.name, x, y) for t in figure.data if t.mode == "markers" for x, y in zip(t.x, t.y, strict=True)
    }
    assert actual == {
        ("x", "row", 1.0, 1.5),
        ("x", "tile", 2.0, 2.0),
        ("x2", "row", -3.0, -1.0),
        ("x2", "tile", 8.0, 4.0),
    }
    assert [t.customdata[0][0] for t in figure.data if t.mode == "markers"] == ["a", "b", "c", "d"]


def test_the_diagonal_spans_both_axes_and_all_marks():
    for line in (t for t in drawing().data if t.mode == "lines"):
        assert list(line.x) == list(line.y)
    low, high = next(t for t in drawing().data if t.mode == "lines" and t.xaxis == "x2").x
    assert low < -3.0
    assert high > 8.0


def test_what_calibrates_is_hollow_and_tests_are_filled():
    colours = {t.name: t.marker.color for t in drawing().data if t.mode == "markers" and t.xaxis == "x"}
    assert colours["tile"] == ("#ffffff",)
    assert colours["row"] != ("#ffffff",)


def test_panels_come_in_the_order_asked_for_and_empty_ones_not_at_all():
    titles = [a.text for a in drawing(order=["A100", "H100", "V100"]).layout.annotations]
    assert titles == ["A100", "V100"]


def test_a_table_without_rows_is_refused():
    with pytest.raises(UserError, match="nothing to draw"):
        drawing(TABLE.iloc[:0])

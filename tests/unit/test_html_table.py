"""Tables in notebooks."""

from tileprof.html_table import html_table


def test_cells_are_text_whatever_is_in_them():
    result = html_table([("kernel", "a<b>"), ("<script>alert(1)</script>", "&")])
    assert result == (
        "<table><tr><td>kernel</td><td>a&lt;b&gt;</td></tr>"
        "<tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>&amp;</td></tr></table>"
    )

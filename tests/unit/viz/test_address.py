"""Links into a page."""

import pytest

from tileprof.errors import UserError
from tileprof.viz import link


def test_a_link_names_what_is_to_be_selected(tmp_path):
    page = tmp_path / "a page.html"
    base = page.as_uri()
    assert link(page) == base
    assert link(page, launch=3) == f"{base}#launch=3"
    assert link(str(page), pair=(3, 5), view="tiles", scheduler="cusync") == f"{base}#pair=3,5&view=tiles&beside=cusync"
    assert link(page, view="what-if").endswith("#view=sizes")
    assert link(page, scheduler="cusync:window=4").endswith("#beside=cusync:window=4")


def test_a_link_to_a_served_page_keeps_its_address():
    assert link("http://127.0.0.1:80/secret/", launch=1) == "http://127.0.0.1:80/secret/#launch=1"


def test_what_a_scheduler_is_called_cannot_end_its_part(tmp_path):
    assert link(tmp_path / "p", scheduler="a&launch=9 #").endswith("#beside=a%26launch=9%20%23")


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="views are pairs, tiles, tensor, gain, what-if"):
        link(tmp_path / "p", view="timeline")
    with pytest.raises(UserError, match="not one of the pair"):
        link(tmp_path / "p", launch=1, pair=(2, 3))

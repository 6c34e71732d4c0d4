"""Tables and figures in documentation, compared with the committed results files that they come from."""

import re
from pathlib import Path

import pytest

from tests.integration.docs import docs_figures, docs_numbers, docs_results
from tests.integration.docs.docs_numbers import evaluate, sections, unexplained
from tests.integration.docs.docs_results import PAGES, ROOT, TABLES

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}


@pytest.mark.parametrize("page", TABLES)
def test_tables_of_a_page_are_what_the_results_files_make(page):
    text = TEXTS[f"docs/{page}.md"]
    assert docs_results.with_tables(text, TABLES[page]) == text, "python -m tests.integration.docs.docs_results --write"


def test_every_figure_in_a_sentence_is_that_of_its_results_file():
    assert docs_figures.disagreements(TEXTS) == [], "python -m tests.integration.docs.docs_results --write"


def test_a_figure_that_differs_is_noticed_and_written_anew():
    page = "README.md"
    wrong_text = re.sub(r"[\d,]+ harmful", "1,234 harmful", TEXTS[page])
    (wrong,) = docs_figures.disagreements(TEXTS | {page: wrong_text})
    assert "1,234 harmful" in wrong
    assert docs_figures.with_figures(wrong_text) == TEXTS[page]


@pytest.mark.parametrize("page", TEXTS)
def test_every_measured_number_comes_from_a_results_file_or_has_a_reason(page):
    others = [f"{page}:{line}: {number}" for line, number in unexplained(TEXTS[page], docs_figures.figures())]
    assert others == [], "docs_numbers.py tells how a page names the source of a number"


def test_numbers_without_a_results_file_name_a_script_that_exists_and_a_day():
    sources = [(page, source) for page, text in TEXTS.items() for each in sections(text) for source in each.sources]
    for page, source in sources:
        script, _, day = source.partition(", ")
        assert (ROOT / script).is_file(), f"{page}: {source}"
        assert re.fullmatch(r"2026-\d\d-\d\d", day), f"{page}: {source}"


RECOMPUTED = {
    "published sets": "tests/unit/analysis/studies/test_cusync_published.py",
    "predicted and measured": "tests/unit/analysis/studies/test_predictions_of_measured.py",
}
"""Tables between marks that a test computes again and no script writes."""


def test_every_table_between_marks_is_written_by_a_script_or_computed_by_a_test():
    names = {name for text in TEXTS.values() for name in re.findall(r"^<!-- end of (.+) -->$", text, re.MULTILINE)}
    paths = {*(ROOT / "tests").rglob("*.py")} - {Path(__file__).resolve()}
    scripts = "".join(path.read_text(encoding="utf-8") for path in sorted(paths))
    written = {name for tables in TABLES.values() for name in tables}
    written |= {name for name in names if f'"{name}"' in scripts or f"<!-- {name} -->" in scripts}
    assert names - written == set(RECOMPUTED)
    assert all((ROOT / test).is_file() for test in RECOMPUTED.values())


PAGE = """# Title

Costs 3.1 to 9.9 us in five of 12 programs, 1.29x in the paper and 7 ms by hand.

<!-- numbers
let us = table(spawn.rows, "name", "rule")[:].flat.us
results: Costs {min(us):.1f} to {max(us):.1f} us in {sum(us > 4):word} of
  {count(us):d} programs
paper: 1.29x
measured: 7 ms (tests/gpu/run.py, 2026-11-20)
-->
"""


@pytest.fixture
def small_results(monkeypatch):
    rows = [{"name": str(name), "rule": "flat", "us": us} for name, us in enumerate((3, 4.5, 5, 8.04))]
    monkeypatch.setattr(docs_numbers, "results", lambda name, folder=None: {"rows": rows})
    monkeypatch.setattr(docs_figures, "figures", list)


def test_a_comment_writes_the_numbers_of_its_section(small_results):
    assert len(docs_figures.disagreements({"page": PAGE})) == 1
    renewed = docs_figures.with_figures(PAGE)
    assert "Costs 3.0 to 8.0 us in three of 4 programs, 1.29x" in renewed
    assert docs_figures.disagreements({"page": renewed}) == []
    assert list(unexplained(renewed, [])) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "number"),
    [
        ("by hand", "by hand, then 12% more", 3, "12%"),
        ("1.29x in the", "1.31x in the", 3, "1.31x"),
        ("1.29x in the", "none in the", 1, "not here: 1.29x"),
        ("Costs 3.1", "It costs 3.1", 3, "3.1 to 9.9 us"),
    ],
)
def test_a_number_without_a_source_and_a_source_without_its_number_are_noticed(small_results, old, new, line, number):
    assert (line, number) in list(unexplained(PAGE.replace(old, new), []))


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "spawn.rows.__class__(1)", "[x for x in spawn.rows]", "spawn.rows if 1 else 2"]
)
def test_an_expression_is_no_program(small_results, expression):
    with pytest.raises((ValueError, KeyError)):
        evaluate(expression)

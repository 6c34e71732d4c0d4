"""Tables and figures in documentation, compared with the committed results files that they come from."""

import re

import pytest

from tests.integration.docs import docs_figures, docs_results
from tests.integration.docs.docs_results import PAGES, ROOT, TABLES

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}

LIMITS_AND_HISTORY = {"SECURITY.md", "CHANGELOG.md"}
RULES_AND_EXAMPLES = {
    "docs/how-it-works.md": {"1000 ns"},
    "docs/model-recorder.md": {"65,536"},
    "docs/reading-the-report.md": {"30%"},
    "docs/record.md": {"65,536"},
    "docs/report.md": {"0.5%", "5%"},
}
"""Numbers that nothing measures: thresholds of the code, and values that a reader chooses."""


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


def test_every_measured_number_has_a_source_in_its_section():
    without_source = [
        f"{name}:{line}: {number}"
        for name, text in TEXTS.items()
        if name not in LIMITS_AND_HISTORY
        for line, number, sourced in docs_figures.other_numbers(text)
        if not sourced and number not in RULES_AND_EXAMPLES.get(name, ())
    ]
    assert without_source == []

"""Every example of README and of the pages under docs prints what the page says."""

from pathlib import Path

import pytest

from tests.integration.docs import docs_examples
from tests.integration.docs.docs_examples import Recordings, check, examples, matches, renewal

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def recordings(shared_folder, warm):
    folder = shared_folder / "recordings"
    folder.mkdir(exist_ok=True)
    return Recordings(folder, warm.path)


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_example_prints_what_the_page_says(page, recordings):
    wrong = check(page, recordings)
    assert not wrong, "\n\n".join([*wrong, f"python {docs_examples.__file__} --write {page}  writes them anew"])


def test_a_page_with_other_output_fails_and_is_rewritten(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one two; exit 3\none three\n[exit code 3]\n$ true\n```\n")
    wrong = check(page, Recordings(tmp_path))
    assert len(wrong) == 1
    assert "-one three\n+one two" in wrong[0]
    assert docs_examples.write(page, Recordings(tmp_path)) == 1
    assert page.read_text() == "```console\n$ echo one two; exit 3\none two\n[exit code 3]\n$ true\n```\n"
    assert check(page, Recordings(tmp_path)) == []


def test_examples_of_a_page_share_a_folder_and_a_namespace(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ cat > word <<'END'\n> hello\n> END\n```\n```pycon\n>>> from pathlib import Path; word = "
        "Path('word').read_text()\n"
        ">>> for letter in word[:2]:\n...     print(letter)\n...\nh\ne\n```\n```pycon\n>>> word\n'hello\\n'\n```\n"
    )
    assert [e.kind for e in examples(page.read_text())] == ["console", "pycon", "pycon", "pycon"]
    assert check(page, Recordings(tmp_path)) == []


@pytest.mark.parametrize(
    ("expected", "actual", "fit"),
    [
        (["a", "...", "z"], ["a", "b", "c", "z"], True),
        (["a", "...", "z"], ["a", "z"], True),
        (["a", "...", "z"], ["a", "b"], False),
        (["took ... s"], ["took 1.5 s"], True),
        (["took ... s"], ["took 1.5 ms!"], False),
        (["a"], ["a  ", ""], True),
        (["..."], [], True),
        ([], ["a"], False),
        (["a.c"], ["abc"], False),
    ],
)
def test_an_ellipsis_stands_for_any_text_or_any_lines(expected, actual, fit):
    assert matches(tuple(expected), actual) is fit


@pytest.mark.parametrize(
    ("expected", "actual", "new"),
    [
        (["a 1", "...", "z 1"], ["a 2", "b", "z 1"], ["a 2", "...", "z 1"]),
        ([("wrote x.tileprof in ... s: 4 "
          "launches")], ["wrote x.tileprof in 3 s: 5 launches"], ["wrote x.tileprof in ... s: 5 launches"]),
        (["one", "two"], ["one", "new", "two"], ["one", "new", "two"]),
        ([], ["a"], ["a"]),
        (["head", "..."], ["other head", "b"], ["other head", "..."]),
    ],
)  # fmt: skip
def test_written_anew_a_page_keeps_its_ellipses(expected, actual, new):
    assert renewal(tuple(expected), actual) == new
    assert matches(tuple(new), actual)

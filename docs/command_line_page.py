"""A hook of MkDocs: the page of the command line has the help text of every verb."""

from __future__ import annotations

import os
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from tileprof.cli import entry

PAGE, MARK = "reference/command-line.md", "<!-- verbs -->"
COLUMNS = {"COLUMNS": "100", "NO_COLOR": "1"}


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return the page with the help text of each verb in place of the mark."""
    return markdown.replace(MARK, verbs()) if page.file.src_uri == PAGE else markdown


def verbs() -> str:
    """Return a section per verb, as Markdown."""
    with mock.patch.dict(os.environ, COLUMNS):
        texts = {name: entry.parser_of(entry.load_verb(name), full=True).format_help() for name in entry.VERBS}
    return "\n\n".join(
        f"## {name}\n\n```text\n{text.rstrip()}\n```\n\n[{name}](../{name}.md)" for name, text in texts.items()
    )

"""``tileprof view``: one self-contained HTML page of a trace."""

from __future__ import annotations

import os
import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from pathlib import Path

from tileprof.cli.verb import Verb
from tileprof.errors import UserError


def _prepare(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    parser.add_argument("-o", "--output", metavar="PAGE", help="where to write the page (default: TRACE's name, .html)")
    parser.add_argument("--force", action="store_true", help="overwrite the page if it exists")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")


def _run(options: Namespace) -> int:
    source = Path(options.trace)
    target = Path(options.output) if options.output else Path(source.resolve().name).with_suffix(".html")
    if target.is_dir():
        raise UserError(f"{target} is a folder; name the page to write, for example -o {target / 'page.html'}")
    if target.exists() and not options.force:
        raise UserError(f"Will not overwrite {target} without --force")
    if not target.resolve().parent.is_dir():
        raise UserError(f"There is no folder {target.parent} to write {target.name} into")

    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.report import build_report  # noqa: PLC0415 - likewise
    from tileprof.trace import load  # noqa: PLC0415 - likewise
    from tileprof.viz import page  # noqa: PLC0415 - likewise

    graph = build_graph(load(source))
    text = page(graph, build_report(graph))
    _write(target, text)
    print(f"{target}  ({len(text) / 1e6:.1f} MB; open it in any browser, it needs no network)", file=sys.stderr)
    if options.open:
        webbrowser.open(target.resolve().as_uri())
    return 0


def _write(target: Path, text: str) -> None:
    """All of the page or none of it."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise UserError(f"Could not write {target}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


VERB = Verb("view", "write a page that shows the trace in a browser", _prepare, _run)

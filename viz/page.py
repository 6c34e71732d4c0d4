"""One self-contained HTML page of a tile graph: no request leaves it, and nothing in it but its own code runs."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import TYPE_CHECKING

from tileprof.viz.document import document
from tileprof.viz.tables.page_values import inert_json

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.guidance import Guidance
    from tileprof.analysis.reporting.report import Report
    from tileprof.viz.comparisons import Study
    from tileprof.viz.tables.policy_overlay import Overlay
    from tileprof.viz.variants import Variant

# The drawing is our own, on canvas: plotly's script alone is 4.5 MB, more than the whole page of a GPT-2 may have, and
# its marks go blank beyond a million, while a pair of launches can have more tiles than that. Its scripts are in
# viz/scripts, as modules; assets/page.js is their bundle (`npm run bundle`).

CONNECT = "; connect-src 'self'"
"""The additional permission of a served page beyond one in a file."""


def page(
    graph: TileGraph,
    report: Report | None = None,
    study: Study | None = None,
    policy: Overlay | None = None,
    variants: tuple[Variant, ...] = (),
    *,
    guidance: Guidance | None = None,
    served: bool = False,
) -> str:
    """Return the page of ``graph`` as HTML text, under 20 MB whatever the trace.

    ``report`` adds what overlap could gain, in all and for each pair; ``study`` schedules and other sizes of GPU;
    ``policy`` lays a policy over the dependencies; ``variants`` are what the sliders of the what-if view move through;
    ``guidance`` is the card that the page opens with; a ``served`` page may ask its own server for more. Names in the
    trace are untrusted: they reach the page as inert JSON and are only ever shown as text.
    """
    value = document(graph, report, study, policy, variants, guidance) | {"served": served}
    script, style = _asset("page.js"), _asset("page.css")
    content_policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'; "
        f"img-src data:; base-uri 'none'; form-action 'none'{CONNECT if served else ''}"
    )
    parts = {
        "POLICY": html.escape(content_policy, quote=True),
        "TITLE": html.escape(value["summary"]["command"] or "a trace"),
        "STYLE": style,
        "DATA": inert_json(value),
        "SCRIPT": script,
    }
    text = _asset("page.html")
    pieces = text.split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return (files("tileprof.viz") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")

"""The page's scripts: the page holds the bundle of the sources in viz/scripts."""

import hashlib
from pathlib import Path

from tileprof.viz import page

VIZ = Path(page.__code__.co_filename).parent
FOLDER = VIZ / "scripts"
SCRIPTS = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.js")}


def test_the_bundle_is_made_from_the_scripts_as_they_are():
    sources = hashlib.sha256()
    for name in sorted(SCRIPTS):
        sources.update(f"{name}\0".encode() + SCRIPTS[name].read_bytes())
    first = (VIZ / "assets" / "page.js").read_text(encoding="utf-8").split("\n", 1)[0]
    assert first.endswith(sources.hexdigest()), "npm run bundle"


def test_each_script_is_of_a_size_that_can_be_read():
    lines = {name: path.read_text(encoding="utf-8").split("\n") for name, path in SCRIPTS.items()}
    assert {name: len(text) for name, text in lines.items() if len(text) > 600} == {}
    assert [(name, line) for name, text in lines.items() for line in text if len(line) > 120] == []

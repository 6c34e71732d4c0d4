"""The version is the same wherever a release names it, and so is the date."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_package_citation_and_changelog_name_one_version_and_date():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    headings = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = next(heading for heading in headings if heading[0] != "Unreleased")
    assert released == (version, citation["date-released"])
    assert citation["version"] == version

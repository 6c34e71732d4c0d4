"""``tileprof diff`` and ``report --fail-if`` as a user runs them."""

import json

import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.cli.entry import main


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    two = write_mlp(folder / "two.tileprof", layers=2, tokens=1024, hidden=2048)
    three = write_mlp(folder / "three.tileprof", layers=3, tokens=1024, hidden=2048)
    return str(two), str(three)


def diff(capsys, *arguments):
    code = main(["diff", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_trace_differs_from_itself_in_nothing(traces, capsys):
    code, out, _ = diff(capsys, traces[0], traces[0], "--fail-if", "time>+0ns", "--fail-if", "launches>+0")
    assert code == 0
    assert "Every module and operator takes the same number of launches and the same time." in out


def test_layers_are_matched_by_module_and_operator_whatever_their_number(traces, capsys):
    code, out, _ = diff(capsys, *traces, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["facts"]["launches"] == [4, 6]
    rows = {(row["module"], row["operator"]): row["launches"] for row in document["rows"]}
    assert rows["h.*.mlp.up", "addmm"] == rows["h.*.mlp.down", "addmm"] == [2, 3]


def test_a_condition_that_holds_is_named_and_ends_with_one(traces, capsys):
    code, out, err = diff(capsys, *traces, "--fail-if", "time>+5%", "--fail-if", "gap>99%")
    assert code == 1
    assert "tileprof: time>+5% holds: time was" in err
    assert "gap>99%" not in err
    assert "launches" in out


@pytest.mark.parametrize(
    ("sources", "noted"),
    [(("heuristic", "learned"), "of 4 launches of A and of none of B"),
     (("learned", "heuristic"), "of 4 launches of B and of none of A"),
     (("heuristic", "heuristic"), None), (("learned", "table"), None), (("heuristic", ""), None)],
)  # fmt: skip
def test_kernels_that_only_one_trace_has_from_nvidias_heuristics_are_noted(tmp_path, capsys, sources, noted):
    paths = [write_mlp(tmp_path / f"{n}.tileprof", shape_source=source) for n, source in enumerate(sources)]
    code, out, _ = diff(capsys, *map(str, paths))
    assert code == 0
    text = " ".join(out.split())
    assert ("NVIDIA's heuristics chose the kernels" in text) == (noted is not None)
    assert noted is None or noted in text
    document = json.loads(diff(capsys, *map(str, paths), "--json")[1])
    expected = {source: [4 * (own == source) for own in sources] for source in sorted(set(sources)) if source}
    assert document["kernels"] == expected


def test_a_report_fails_where_a_condition_holds(traces, capsys):
    assert main(["report", traces[0], "--fail-if", "launches>3"]) == 1
    assert "launches>3 holds: launches is 4" in capsys.readouterr().err
    assert main(["report", traces[0], "--fail-if", "launches>4"]) == 0

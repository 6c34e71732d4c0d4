"""``--by-filters``: verbs take dependencies from the filters of a trace, and say so."""

import json

import numpy as np
import pytest

from tests.support.synthetic_graphs import write_mlp
from tileprof.analysis.simulate.filters.bloom import Filters, filter_words, touched
from tileprof.analysis.simulate.filters.filter_graph import BASIS
from tileprof.cli.entry import main
from tileprof.trace import filters, load

SAYS = "dependencies by Bloom filters, a superset of those by accesses"


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """Return a trace with the filters that its blocks would fill."""
    path = write_mlp(tmp_path_factory.mktemp("filters") / "mlp.tileprof", layers=1)
    trace = load(path)
    words = [filter_words(touched(trace, n, 512), Filters(8192, 2)) for n in range(len(trace.launches))]
    rows = [filters.LaunchFilters(n, w, np.full(len(w), -1)) for n, w in enumerate(words)]
    filters.write(path, filters.StoredFilters(8192, 2, 512, rows))
    return path


def test_a_policy_of_filters_is_written_verified_and_simulated(mlp, tmp_path, capsys):
    assert main(["export", str(mlp), "--by-filters", "--launches", "0,1", "-o", str(tmp_path / "out")]) == 0
    errors = capsys.readouterr().err
    assert SAYS in errors
    assert "all of them among these" in errors
    policy = tmp_path / "out/policy.json"
    assert json.loads(policy.read_text())["notes"][0] == BASIS

    assert main(["verify", str(policy), str(mlp)]) == 0
    exact = capsys.readouterr().out
    assert main(["verify", str(policy), str(mlp), "--by-filters"]) == 0
    by_filters = capsys.readouterr()
    assert SAYS in by_filters.err
    assert "all waited for" in exact
    assert "all waited for" in by_filters.out
    assert main(["simulate", str(mlp), "--by-filters", "--scheduler", "dataflow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dependencies"] == BASIS
    assert main(["simulate", str(mlp), "--scheduler", "dataflow", "--json"]) == 0
    assert "dependencies" not in json.loads(capsys.readouterr().out)
    assert main(["report", str(mlp), "--by-filters", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dependencies"] == BASIS


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["simulate", "TRACE", "TRACE"], "--by-filters is for one trace at one setting"),
        (["simulate", "workload:bfs"], "--by-filters needs a trace"),
        (["export", "by_hand.dep"], "--by-filters takes dependencies from one trace"),
        (["export", "TRACE", "--for", "tokens=1..64"], "--by-filters takes dependencies from one trace"),
    ],
)
def test_what_has_no_recorded_tiles_is_refused(mlp, arguments, why, capsys):
    words = [str(mlp) if word == "TRACE" else word for word in arguments]
    assert main([*words, "--by-filters"]) == 2
    assert why in capsys.readouterr().err


def test_filters_that_miss_a_dependency_are_refused(tmp_path, capsys):
    path = write_mlp(tmp_path / "mlp.tileprof", layers=1)
    assert main(["report", str(path), "--by-filters"]) == 2
    assert "has no filters: record it with --filters 8192,2,512" in capsys.readouterr().err
    tiles = load(path).launches["tiles"].tolist()
    rows = [filters.LaunchFilters(n, np.zeros((t, 2, 32), np.uint32), np.full(t, -1)) for n, t in enumerate(tiles)]
    filters.write(path, filters.StoredFilters(1024, 2, 512, rows))
    assert main(["report", str(path), "--by-filters"]) == 2
    assert "dependencies that its accesses have" in capsys.readouterr().err

"""The convolution policies that cuSync ships omit the halo; the trace shows which tiles, and the cost of waiting for
them.
"""

import subprocess
import sys

import pytest

from tileprof.analysis import build_graph
from tileprof.cli.entry import main
from tileprof.policy.assessment import assess
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.verification.verifier import verify
from tileprof.trace import load

pytest.importorskip("torch")

PIXELS = 56
TILE = "conv=32x64x32,split=1"
"""Tiles are runs of 32 pixels, given so that no rule of a device decides their number."""

NETWORKS = {"resnet38": ("stage1.0.conv1", "stage1.0.conv2"), "vgg19": ("stage1.0", "stage1.2")}
"""Modules of two 3x3 convolutions of 56 x 56 pixels with a ReLU between them."""


@pytest.fixture(scope="module", params=NETWORKS)
def recording(request, tmp_path_factory, warm):
    path = tmp_path_factory.mktemp("halo") / f"{request.param}.tileprof"
    program = [sys.executable, "-m", f"tileprof.examples.{request.param}", "--channels-last"]
    command = [warm.path / "tileprof", "record", "-o", path, "--tile", TILE, "--", *program]
    subprocess.run(command, check=True, capture_output=True)
    launches = load(path).launches
    convolutions = launches[launches["kernel"].str.startswith("implicit_gemm")].set_index("module")["launch"]
    return path, tuple(int(convolutions[module]) for module in NETWORKS[request.param])


def halo(rows):
    """Return the dependencies (producer tile, consumer tile) of a 3x3 convolution, from the geometry; tiles are runs of
    ``rows`` pixels.
    """
    actual = set()
    for pixel in range(PIXELS * PIXELS):
        y, x = divmod(pixel, PIXELS)
        for v in range(max(0, y - 1), min(PIXELS, y + 2)):
            for u in range(max(0, x - 1), min(PIXELS, x + 2)):
                actual.add(((v * PIXELS + u) // rows, pixel // rows))
    return actual


@pytest.mark.parametrize("kind", ["conv2dtile", "rowsync", "tilesync"])
def test_the_missing_dependencies_are_the_halo(recording, kind):
    path, pair = recording
    graph = fuse(build_graph(load(path)), pair)
    policy = shipped_policy(Shipped(kind), graph, *pair)
    verdict = verify(policy, graph, pair)
    rows = PIXELS * PIXELS // policy.stages[0].grid[0]
    assert rows * policy.stages[0].grid[0] == PIXELS * PIXELS
    expected = halo(rows)
    actual = set(verdict.missing[["producer_tile", "consumer_tile"]].itertuples(index=False, name=None))
    assert actual == {(p, c) for p, c in expected if p != c}
    assert verdict.covered == len({c for _, c in expected})
    assert verdict.never == ()
    assert (verdict.missing["bytes"] > 0).all()


def test_the_corrected_policy_waits_for_the_halo_and_costs_next_to_nothing(recording):
    path, pair = recording
    graph = fuse(build_graph(load(path)), pair)
    assessment = assess(shipped_policy(Shipped("conv2dtile"), graph, *pair), graph, pair)
    assert not assessment.verdict.sound
    assert verify(assessment.corrected, graph, pair).sound
    assert assessment.corrected.prediction["policy_us"] <= assessment.policy_us + 0.01
    assert assessment.policy_us < assessment.stream_us


def test_the_command_names_the_tiles(recording, capsys):
    path, (producer, consumer) = recording
    if load(path).launches["module"].iloc[producer] != "stage1.0":
        pytest.skip("one network is enough for the command line")
    assert main(["verify", "cusync:conv2dtile", str(path), "--pair", f"{producer}:{consumer}", "--fuse"]) == 1
    printed_text = capsys.readouterr().out
    expected = halo(PIXELS * PIXELS // int(load(path).launches["grid_x"].iloc[producer]))
    missing = sum(p != c for p, c in expected)
    assert f"UNSOUND: {missing} of {len(expected)} dependencies are not waited for." in printed_text
    assert f"… and {missing - 10} more" in printed_text
    assert "A sound policy for these launches" in printed_text

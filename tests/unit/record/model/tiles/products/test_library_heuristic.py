"""How NVIDIA's library is asked; a stand-in notes the questions, because the library is optional."""

import sys
from types import SimpleNamespace

import pytest

from tileprof.devices import get
from tileprof.record.model.tiles.products import library_heuristic
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.problem import Problem

H200 = get("H200")


class Interface:
    """Answers with one kernel; its slices are the MiB of the workspace, its stages the layout."""

    def __init__(self, target, precision, flags):
        self.target, self.precision, self.flags = target, precision, flags

    def createHardwareDescriptor(self):  # noqa: N802 - the library's spelling
        return []

    def setHardwarePredefinedGpu(self, hardware, gpu):  # noqa: N802
        hardware.append(gpu)

    def loadInternalDiscoverySet(self, layout, hardware):  # noqa: N802
        pass

    def createBackend(self, target):  # noqa: N802
        return {"target": target}

    def setBackendValueProperty(self, backend, number, value, size):  # noqa: N802
        backend[number] = value.contents.value
        assert size == 4

    def makeNvMatmulHeuristicsProblem(self, m, n, k, layout, batch):  # noqa: N802
        return m, n, k, layout, batch

    def getEx(self, question, count, backend, hardware):  # noqa: N802
        assert (count, hardware) == (library_heuristic.PROPOSALS, [9003])
        m, n, _, layout, _ = question
        kernel = SimpleNamespace(
            cta_tile_m=m, cta_tile_n=n, cta_tile_k=64, cluster_m=2, cluster_n=1, split_k=backend[8] >> 20, stages=layout
        )
        return [{"kernel": kernel}]


@pytest.fixture
def _installed(monkeypatch):
    names = ("Target", "Flags", "NvidiaGpu", "MatmulLayout")
    module = SimpleNamespace(
        NvMatmulHeuristicsInterface=Interface, **{f"NvMatmulHeuristics{name}": int for name in names}
    )
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", module)
    library_heuristic._interface.cache_clear()
    yield
    library_heuristic._interface.cache_clear()


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(("op", "mebibytes"), [(problems.PLAIN, 32), (problems.BATCHES, 32), (problems.BIAS, 1)])
def test_products_are_asked_about_transposed_with_the_workspace_that_pytorch_gives(op, mebibytes):
    [proposal] = library_heuristic.proposals(Problem(op, problems.FP16, 1, 0, 1, 48, 96, 640), H200)
    assert (proposal.m, proposal.n, proposal.cluster) == (48, 96, (1, 2))
    assert (proposal.split, proposal.stages) == (mebibytes, 5)


@pytest.mark.usefixtures("_installed")
def test_what_ends_the_library_and_what_it_does_not_know_is_not_asked():
    asked = Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 4096, 24, 64)
    assert library_heuristic.proposals(asked, H200) == []
    assert library_heuristic.proposals(Problem(*asked.key[:5], 4095, 24, 64), H200)
    assert library_heuristic.proposals(Problem(0, problems.FP32, 0, 1, 1, 512, 64, 64), H200) == []
    assert library_heuristic.proposals(Problem(*asked.key[:5], 512, 64, 64), get("A100")) == []

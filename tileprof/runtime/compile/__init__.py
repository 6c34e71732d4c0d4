"""``torch.compile(model, backend="tileprof")``: parts of whole programs by kernels of this package where that is
faster; all else is Inductor's.

In inference the graph of ATen operations is searched for regions that one kernel computes: decoders, convolutional
networks and stacks of transformer blocks (`finders`), then chains of products (two or more matrix products, each fed by
the one before through at most one activation, or the gated form ``(silu(x @ g) * (x @ u)) @ d``). Each region becomes
one operator, the rest is compiled by Inductor, and at the first call this program runs a race against Inductor's
compile of the whole graph. So nothing is left eager, and a program is not slower than Inductor's beyond what the race
can tell. Training, dynamic shapes, CPUs, GPUs other than compute capability 9.0 and machines without nvcc get
Inductor's program, with one line in the log.

Options, given as ``torch.compile(..., options={...})``:

``use``
    ``"measured"`` (default): both programs run on the first call's inputs (what they update in place is put back
    between), their results are compared within the dtype's tolerance, or with float32 where they differ, and both are
    timed inside CUDA graphs, in turn; ours is kept if it is at least 4% faster. Results that are all zero or not finite
    decide nothing, and the next call does. ``"always"``: without a race, compared with PyTorch's results; on a CPU
    chains are executed tile by tile, which is slow and meant for checking. ``"never"``.
``scheduler``
    For chains: a name of `tileprof.runtime.schedulers`, or ``"auto"`` (default): ``"persistent"``, with tiles for it,
    where the GPU and the chain are ones that it takes, otherwise ``"cusync"``.
``policies``
    Policy files, for one size or for a range, whose stages are looked for in the graph before anything else
    (`policy_files`); they keep their own tiles. A file that fits nowhere is warned of.
``frozen``
    ``True``: copies of weights may take more than 512 MB (default: ``False``). Some kernels keep weights in another
    form: batch norm as a scale and a bias, the two weights of a gate side by side (LLaMA-7B: 180 MB per layer). Each
    call looks whether a weight is another tensor or was changed by an operation of PyTorch, and then the copy is made
    again. Writes through ``.data``, or by kernels that PyTorch does not know of, are not seen, and a captured graph
    keeps the copies that it was captured with.
``remeasure``
    ``True``: a race, whatever an earlier process has measured (`verdict_cache`). Default: ``False``.
``later``
    ``True``: the first call compares with PyTorch's results and runs ours; the second one outside of a capture compiles
    Inductor's program and races. The first result then comes sooner than from Inductor. Default: ``False``.

Calls may come from several threads and streams, and may be captured in CUDA graphs: each stream and each capture has
semaphores of its own. Call the program once outside of a capture before each capture; keep it as long as the graphs.
What was taken and what was not is logged by ``tileprof.runtime.compile`` at level INFO.
"""

from tileprof.runtime.compile.entry import backend
from tileprof.runtime.compile.options import Options

__all__ = ["Options", "backend"]

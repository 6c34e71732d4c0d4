"""``torch.compile(model, backend="tileprof")``: chains of products run by the runtime where that is faster; all else stays PyTorch's.

A chain is two or more matrix products, each fed by the one before through at most one activation, or the gated form
``(silu(x @ g) * (x @ u)) @ d``, whose intermediate results nobody else reads: while gradients are recorded somebody does, so chains are found in
inference only. Options, given as ``torch.compile(..., options={...})``:

``use``        ``"measured"`` (default): on a GPU both ways are timed inside CUDA graphs at the first call with a chain's shapes, their results compared,
               and the runtime's way is kept if it is at least 2% faster and within the dtype's tolerance; results that are all zero or not finite decide
               nothing, and the next call does. On a CPU PyTorch's own kernels are kept.
               ``"always"``: without a race; on a CPU the chain is executed tile by tile, which is slow and meant for checking. ``"never"``.
``scheduler``  a name of `tileprof.runtime.schedulers`, or ``"auto"`` (default): ``"persistent"``, with tiles for it, where the GPU and the chain are ones
               that it takes, otherwise ``"cusync"``.
``policies``   policy files to prefer where the stages are the chain's; other chains get one that is made from what their tiles touch.
``frozen``     ``True``: weights do not change while the compiled model is used (default: ``False``). On a GPU that the persistent kernel runs on, the two weights of a gate are
               then kept side by side as one, which that kernel takes; without, such a chain gets Triton's kernels. The copy is as large as both (LLaMA-7B: 180 MB a
               layer). It is made again when an operation of PyTorch has changed a weight or put another in its place; writes through ``.data``, or by kernels that
               PyTorch knows nothing of, are not seen, and a captured graph keeps the copy that it was captured with. Hence a promise, and not a default.

What was taken and what was not, with the reason, is logged by ``tileprof.runtime.compile`` at level INFO.
"""

from tileprof.runtime.compile.replace import Options, backend

__all__ = ["Options", "backend"]

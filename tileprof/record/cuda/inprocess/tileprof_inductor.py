# ruff: noqa: INP001, PLC0415, PTH118, PTH119, PTH120, PTH123 - runs inside other programs: a script that imports
# little, and late
"""Names for what torch.compile's code launches: each call in a generated module says first which operators it computes.

Inductor writes the operators above every call of its wrapper code, whether of a Triton kernel, of an extern kernel or
of an operator that it leaves alone ::

    # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm]
    extern_kernels.addmm(arg1_1, arg2_1, ...)

A copy of the module is loaded in its place, in which these comments have become calls of `mark`. Modules' paths are
added to the comments while the code is generated, from what the graph's nodes remember; code that comes out of a cache
from a run without this hook has none.

Calls of extern kernels, and of Triton's kernels that compute one activation, say how they were called, too: `extern`
and `pointwise` stand around them in the copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

_COMMENT = re.compile(
    r"^(?P<indent>\s+)# (?:Topologically Sorted|Unsorted)? ?Source Nodes: \[(?P<nodes>.*?)\], Original ATen: "
    r"\[(?P<ops>.*?)\](?:, Modules: \[(?P<modules>.*?)\])?(?:, Activation: (?P<activation>\w+))?"
)
_EXTERN = re.compile(r"\bextern_kernels\.(?P<name>\w+)\(")
_TRITON = re.compile(r"^(?P<indent>\s+)(?P<run>triton_poi_\w+\.run)\(")
_ACTIVATIONS = {
    "relu": ("relu", {}), "silu": ("silu", {}), "gelu": ("gelu", {"approximate": "none"}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
}  # fmt: skip
"""Operators and their other arguments, by the name in a comment."""

_PASSED = frozenset({"addmm", "mm", "bmm", "convolution", "t", "view", "permute", "_unsafe_view", "transpose"})
"""Operators whose results an activation takes: kernels are named after these, too."""

_OVERLOADED = {"bias_addmm": "addmm"}
"""Extern kernels that are PyTorch's operators under another name."""

_RETURN = re.compile(r"^(?P<indent>\s+)return\b")
_FUNCTION = re.compile(r"^(?P<indent>\s*)def (?:call|partition_\d+)\(")
_HEAD = (
    "from tileprof_inductor import mark as _tileprof_mark, extern as _tileprof_extern, "
    "pointwise as _tileprof_pointwise\n"
)

say: Callable[[str, str], None] = lambda _op, _module: None  # noqa: E731 - set by the listener
tell: Callable[[Any], None] = lambda _event: None  # noqa: E731 - as above
last = [""]
"""The module that was marked last."""


def mark(op: str, module: str) -> None:
    """Say that what is launched from now on belongs to these operators and modules; "" for none."""
    last[0] = module
    say(op, module)


def extern(name: str, function: Any, *arguments: Any, **options: Any) -> Any:
    """Call an extern kernel, which is the operator of that name; say which it is, and how it was called."""
    operator = _operator(_OVERLOADED.get(name, name))
    if operator is None:
        return function(*arguments, **options)
    say(operator.name(), last[0])
    result = function(*arguments, **options)
    call_options = {key: value for key, value in options.items() if key != "out"}
    _tell_of(operator, arguments, call_options, options.get("out", result))
    return result


def pointwise(activation: str, function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a Triton kernel that computes an activation of its first tensor into its last, or in place."""
    import torch

    name, call_options = _ACTIVATIONS[activation]
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    operator = _operator(name) if 1 <= len(tensors) <= 2 and len({t.shape for t in tensors}) == 1 else None
    if operator is None:
        return function(*arguments, **options)
    say(operator.name(), last[0])
    result = function(*arguments, **options)
    _tell_of(operator, (tensors[0],), call_options, tensors[-1])
    return result


def _operator(name: str) -> Any:
    import torch

    return getattr(getattr(torch.ops.aten, name, None), "default", None)


def _tell_of(operator: Any, arguments: Any, options: Any, result: Any) -> None:
    """Hand on how an operator was called; whatever fails here is ours, and the program continues."""
    try:
        import tileprof_calls  # type: ignore[import-not-found]
        import torch

        event = tileprof_calls.described(torch, operator, arguments, options, result)
    except Exception:  # noqa: BLE001 - the program's own call has been made
        return
    if event is not None:
        tell(event)


def install(codecache: Any) -> None:
    """Load generated modules in the form that names its calls; ``codecache`` is `torch._inductor.codecache`."""
    original = codecache.PyCodeCache.load_by_key_path.__func__

    def load_by_key_path(cls: Any, key: str, path: str, *rest: Any, **options: Any) -> Any:
        return original(cls, key, _named_path(path), *rest, **options)

    codecache.PyCodeCache.load_by_key_path = classmethod(load_by_key_path)


def remember_modules(utils: Any) -> None:
    """Add modules' paths to the comments; ``utils`` is `torch._inductor.utils`, before others import from it."""
    original = utils.get_kernel_metadata

    def get_kernel_metadata(node_schedule: Any, wrapper: Any) -> tuple[str, str]:
        line, details = original(node_schedule, wrapper)
        try:
            paths = module_paths(node.meta for node in utils.aggregate_origins(node_schedule))
        except (AttributeError, TypeError, ValueError):  # another version keeps it otherwise: names without modules
            return line, details
        line = f"{line}, Modules: [{', '.join(paths)}]" if paths else line
        try:
            activation = activation_of(utils.aggregate_origins(node_schedule))
        except (AttributeError, TypeError, ValueError):
            return line, details
        return (f"{line}, Activation: {activation}" if activation else line), details

    utils.get_kernel_metadata = get_kernel_metadata


def module_paths(metas: Iterable[dict[str, Any]]) -> list[str]:
    """Return the innermost module of each node that has one, as in ``named_modules()``, each once, in order of name."""
    paths = set()
    for meta in metas:
        stack = meta.get("nn_module_stack")
        if stack:
            path, _ = list(stack.values())[-1]
            paths.add(module_path(path))
    return sorted(paths - {""})


def activation_of(nodes: Iterable[Any]) -> str:
    """Return the activation that these nodes of the graph compute and nothing else does; empty for others.

    PyTorch takes a GELU apart before kernels are made: whether it is the one with tanh is in the parts.
    """
    nodes = list(nodes)
    names = {str(node.meta.get("original_aten", "")).removeprefix("aten.").partition(".")[0] for node in nodes}
    computed = names - _PASSED - {"", "None"}
    if len(computed) != 1 or not computed & {"relu", "silu", "gelu"}:
        return ""
    name = computed.pop()
    targets = {str(node.target).removeprefix("aten.").partition(".")[0] for node in nodes}
    if name != "gelu":
        return name
    if "erf" in targets:
        return name
    return "gelu_tanh" if "tanh" in targets else ""


def module_path(path: str) -> str:
    """Return ``h.0.mlp`` of ``L['self'].h[0].mlp``, of ``L['self']._modules['h'][0].mlp`` and of ``L__self___h_0_mlp``
    its rest.
    """
    path = re.sub(r"^L\['\w+'\]|^L__self__+", "", path).replace("._modules", "")
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", path)
    return path.strip(".").removeprefix("_orig_mod.")


def operators(text: str) -> str:
    """Return ``aten::t+aten::addmm`` of ``aten.t, aten.addmm``."""
    return "+".join(word.strip().replace(".", "::", 1) for word in text.split(",") if word.strip())


def instrumented(source: str) -> str:
    """Return the wrapper module with calls of `mark` above its calls and before its returns; unchanged when it is
    none.
    """
    out, inside, is_instrumented, activation = [], -1, False, ""
    for line in source.splitlines(keepends=True):
        function = _FUNCTION.match(line)
        width = len(line) - len(line.lstrip())
        if function:
            inside = len(function["indent"])
        elif inside >= 0 and line.strip() and width <= inside:
            inside = -1
        comment, leaves = (_COMMENT.match(line), _RETURN.match(line)) if inside >= 0 else (None, None)
        if leaves:
            out.append(f"{leaves['indent']}_tileprof_mark('', '')\n")
        code = inside >= 0 and not line.lstrip().startswith("#")
        out.append(_around(line, activation) if code else line)
        is_instrumented |= out[-1] != line
        if comment:
            is_instrumented, activation = True, comment["activation"] or ""
            names = operators(comment["ops"]), comment["modules"] or ""
            out.append(f"{comment['indent']}_tileprof_mark({names[0]!r}, {names[1]!r})\n")
    return _with_head("".join(out)) if is_instrumented else source


def _around(line: str, activation: str) -> str:
    """Return a line whose extern kernel, or Triton kernel of one activation, is called through us."""
    line = _EXTERN.sub(lambda m: f"_tileprof_extern({m['name']!r}, extern_kernels.{m['name']}, ", line)
    if activation in _ACTIVATIONS:
        line = _TRITON.sub(lambda m: f"{m['indent']}_tileprof_pointwise({activation!r}, {m['run']}, ", line)
    return line


def _with_head(source: str) -> str:
    """Return the import first, but behind what must come before it: comments, and imports from the future."""
    lines = source.splitlines(keepends=True)
    last = max((i for i, line in enumerate(lines) if line.startswith("from __future__")), default=-1)
    return "".join([*lines[: last + 1], _HEAD, *lines[last + 1 :]])


def _named_path(path: str) -> str:
    """Return a copy of a generated module that names its calls, beside it; the path itself when there is nothing to
    name.
    """
    with open(path, encoding="utf-8") as file:
        source = file.read()
    text = instrumented(source)
    if text == source:
        return path
    copy = os.path.join(os.path.dirname(path), f"tileprof_{os.path.basename(path)}")
    with open(f"{copy}.{os.getpid()}", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{copy}.{os.getpid()}", copy)  # noqa: PTH105 - as above
    return copy

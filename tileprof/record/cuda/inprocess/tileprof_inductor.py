# ruff: noqa: INP001, PTH118, PTH119, PTH120, PTH123 - runs inside other programs: a script that imports little, and late
"""Names for what torch.compile's code launches: each call in a generated module says first which operators it computes.

Inductor writes the operators above every call of its wrapper code, whether of a Triton kernel, of an extern kernel or
of an operator that it leaves alone ::

    # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm]
    extern_kernels.addmm(arg1_1, arg2_1, ...)

A copy of the module is loaded in its place, in which these comments have become calls of `mark`. Modules' paths are
added to the comments while the code is generated, from what the graph's nodes remember; code that comes out of a cache
from a run without this hook has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

_COMMENT = re.compile(
    r"^(?P<indent>\s+)# (?:Topologically Sorted|Unsorted)? ?Source Nodes: \[(?P<nodes>.*?)\], Original ATen: "
    r"\[(?P<ops>.*?)\](?:, Modules: \[(?P<modules>.*?)\])?"
)
_RETURN = re.compile(r"^(?P<indent>\s+)return\b")
_FUNCTION = re.compile(r"^(?P<indent>\s*)def (?:call|partition_\d+)\(")
_HEAD = "from tileprof_inductor import mark as _tileprof_mark\n"

say: Callable[[str, str], None] = lambda _op, _module: None  # noqa: E731 - set by whoever listens


def mark(op: str, module: str) -> None:
    """What is launched from now on belongs to these operators and modules; "" for none."""
    say(op, module)


def install(codecache: Any) -> None:
    """Load generated modules in the form that names its calls; ``codecache`` is `torch._inductor.codecache`."""
    original = codecache.PyCodeCache.load_by_key_path.__func__

    def load_by_key_path(cls: Any, key: str, path: str, *rest: Any, **options: Any) -> Any:
        return original(cls, key, _named(path), *rest, **options)

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
        return (f"{line}, Modules: [{', '.join(paths)}]" if paths else line), details

    utils.get_kernel_metadata = get_kernel_metadata


def module_paths(metas: Iterable[dict[str, Any]]) -> list[str]:
    """The innermost module of each node that has one, as in ``named_modules()``, each once, in order of name."""
    found = set()
    for meta in metas:
        stack = meta.get("nn_module_stack")
        if stack:
            path, _ = list(stack.values())[-1]
            found.add(module_path(path))
    return sorted(found - {""})


def module_path(path: str) -> str:
    """``h.0.mlp`` of ``L['self'].h[0].mlp``, of ``L['self']._modules['h'][0].mlp`` and of ``L__self___h_0_mlp`` its
    rest.
    """
    path = re.sub(r"^L\['\w+'\]|^L__self__+", "", path).replace("._modules", "")
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", path)
    return path.strip(".").removeprefix("_orig_mod.")


def operators(text: str) -> str:
    """``aten::t+aten::addmm`` of ``aten.t, aten.addmm``."""
    return "+".join(word.strip().replace(".", "::", 1) for word in text.split(",") if word.strip())


def instrumented(source: str) -> str:
    """The wrapper module with calls of `mark` above its calls and before its returns; unchanged when it is none."""
    out, inside, changed = [], -1, False
    for line in source.splitlines(keepends=True):
        function = _FUNCTION.match(line)
        width = len(line) - len(line.lstrip())
        if function:
            inside = len(function["indent"])
        elif inside >= 0 and line.strip() and width <= inside:
            inside = -1
        found, leaves = (_COMMENT.match(line), _RETURN.match(line)) if inside >= 0 else (None, None)
        if leaves:
            out.append(f"{leaves['indent']}_tileprof_mark('', '')\n")
        out.append(line)
        if found:
            changed = True
            names = operators(found["ops"]), found["modules"] or ""
            out.append(f"{found['indent']}_tileprof_mark({names[0]!r}, {names[1]!r})\n")
    return _with_head("".join(out)) if changed else source


def _with_head(source: str) -> str:
    """The import first, but behind what must come before it: comments, and imports from the future."""
    lines = source.splitlines(keepends=True)
    last = max((i for i, line in enumerate(lines) if line.startswith("from __future__")), default=-1)
    return "".join([*lines[: last + 1], _HEAD, *lines[last + 1 :]])


def _named(path: str) -> str:
    """A copy of a generated module that names its calls, beside it; the path itself when there is nothing to name."""
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

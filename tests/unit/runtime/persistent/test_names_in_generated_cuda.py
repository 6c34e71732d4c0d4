"""Generated CUDA contains only numbers: the text does not depend on the names of stages and tensors."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

import tileprof
from tileprof.runtime.chain import Chain
from tileprof.runtime.copilot import copilot_build as copilot
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.measuring.cases import convolution_pair, gelu_mlp
from tileprof.runtime.persistent.source import Options, header
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages import View

NAMES = [
    "*/ int main() { return 1; } /*",
    '"); system("true"); ("',
    "line\n#error",
    "back\\slash\\\n#error ??/",
    "\u202eevil\u2066\u2028",
    "class",
    "",
]
CHAINS = {
    "products": gelu_mlp(64, (64, 192), (64, 128), 256, 512),
    "convolutions": convolution_pair(1, 8, 64, (16, 64)),
}
RUN_TEXT = {"exec", "eval"}
"""Calls that run a text as Python."""


def renamed_chain(chain: Chain, word: str) -> Chain:
    """Return the chain with other names of stages and tensors."""
    operators = [
        replace(
            one,
            **{
                field.name: replace(value, tensor=value.tensor + word)
                for field in fields(one)
                if isinstance(value := getattr(one, field.name), View)
            },
        )
        for one in chain.operators
    ]
    return Chain(tuple(name + word for name in chain.names), tuple(operators))


def sources(chain: Chain) -> tuple[str, str]:
    plan = plan_of(chain.policy(), chain, clusters=4, split=1)
    return header(plan, Options()), copilot.header(plan, Choices())


@pytest.mark.parametrize("kind", CHAINS)
def test_no_name_reaches_generated_cuda(kind: str) -> None:
    plain = sources(CHAINS[kind])
    assert all(text.isascii() and "constexpr" in text for text in plain)
    for name in NAMES:
        other_chain = renamed_chain(CHAINS[kind], name)
        assert other_chain != CHAINS[kind] or not name
        assert sources(other_chain) == plain, name


def test_no_python_is_made_from_a_text_but_the_users_program() -> None:
    """Triton kernels are modules of the package, so their source contains no name from a file."""
    package = Path(tileprof.__file__).parent
    folders = {package, *(Path(path) for name in ("analysis", "viz") for path in _folders(name))}
    actual = set()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(f"{word}(" in text for word in RUN_TEXT) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUN_TEXT:
                actual.add(path.relative_to(package.parent).as_posix() if package in path.parents else path.name)
    lowering_files = {f"tileprof/record/model/compiled/{name}.py" for name in ("evaluation", "kernels", "wrapper")}
    assert actual == {"tileprof/record/program.py"} | lowering_files  # Inductor generates these from the user's program


def _folders(name: str) -> list[str]:
    from importlib import import_module

    return list(import_module(f"tileprof.{name}").__path__)

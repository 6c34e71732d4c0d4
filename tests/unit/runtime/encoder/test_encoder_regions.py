"""Transformer blocks in ATen graphs: regions compute what the graph computes, other graphs are left out, and plans are
complete.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support.runtime.encoder_programs import post_norm, pre_norm
from tileprof.errors import UserError
from tileprof.runtime.compile.regions.partition import unfit
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.compile.tracing import inference_graphs
from tileprof.runtime.encoder import plan as plans
from tileprof.runtime.encoder import reference
from tileprof.runtime.encoder.block_regions import find
from tileprof.runtime.encoder.constants import constant
from tileprof.runtime.encoder.plan import StagePlan, Task, TaskBoxes, faults, plan_of, touches, without_task
from tileprof.runtime.encoder.program import Attention, Program


class Block(nn.Module):
    """A pre-norm block as models write it; with any change it is not a block that the kernel takes."""

    def __init__(self, hidden: int = 128, change: str = "") -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.heads, self.change = hidden // (32 if change == "heads of 32" else 64), change

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        if self.change == "scaled attention":
            mixed = mixed * 2
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        inner = functional.gelu(self.up(self.second(x)))
        if self.change == "an activation that the kernel has not":
            inner = functional.elu(inner)
        if self.change == "a sum that is scaled":
            return torch.add(x, self.down(inner), alpha=2)
        return x + self.down(inner)


def graph_of(model: nn.Module, *args: Any, dtype: torch.dtype = torch.float16) -> fx.GraphModule:
    (graph,) = inference_graphs(model.eval().to(dtype), *args)
    return graph


def values_of(graph: fx.GraphModule) -> dict[fx.Node, Any]:
    """Return the values of all nodes for random placeholders."""
    matches: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            matches[n] = super().run_node(n)
            return matches[n]

    torch.manual_seed(3)
    likes = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    inputs = [
        (torch.randn(v.shape) / 10).to(v.dtype)
        if v.is_floating_point()
        else torch.randint(0, 2, v.shape, dtype=v.dtype)
        for v in likes
    ]
    with torch.no_grad():
        Recorder(graph).run(*inputs)
    return matches


def program_of(region: Region) -> Program:
    program = region.build.args[0]  # type: ignore[attr-defined]
    assert isinstance(program, Program)
    return program


def check(graph: fx.GraphModule, stacks: int) -> None:
    regions = list(find(graph.graph))
    assert len(regions) == stacks
    values = values_of(graph)
    for region in regions:
        assert unfit(graph.graph, region) is None
        program = program_of(region)
        results = reference.run(program, {node.name: values[node] for node in region.inputs})
        for node, (name, _, _) in zip(region.outputs, program.outputs, strict=True):
            expected = values[node].float()
            error = (results[name].view(expected.shape).float() - expected).norm() / expected.norm()
            assert error < 5e-3, name
        assert faults(plan_of(program, 16, 2)) == []


@pytest.mark.parametrize(("batch", "length"), [(1, 40), (3, 17)])
def test_blocks_that_feed_each_other_are_one_region(batch: int, length: int) -> None:
    check(graph_of(nn.Sequential(Block(), Block()), torch.randn(batch, length, 128).half()), 1)


@pytest.mark.parametrize(("cache", "layers"), [(False, 1), (True, 2)])
def test_gpt2_with_the_cache_that_it_returns(cache: bool, layers: int) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2Model(
        transformers.GPT2Config(n_layer=layers, n_embd=128, n_head=2, vocab_size=64, use_cache=cache)
    )
    check(graph_of(model, torch.randint(0, 64, (1, 32))), 1)


def test_opt_whose_queries_are_scaled_before_attention() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.OPTConfig(
        hidden_size=128,
        num_hidden_layers=1,
        ffn_dim=256,
        num_attention_heads=2,
        word_embed_proj_dim=128,
        vocab_size=64,
        use_cache=False,
    )
    graph = graph_of(transformers.OPTModel(config), torch.randint(2, 64, (1, 32)))
    check(graph, 1)
    (region,) = find(graph.graph)
    assert [stage.scale for stage in program_of(region).stages if isinstance(stage, Attention)] == [0.125]


def bert_config(layers: int = 1) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=128, num_attention_heads=2, intermediate_size=256, vocab_size=64
    )


@pytest.mark.parametrize("masked", [False, True])
def test_bert_with_and_without_a_mask(masked: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = bert_config()
    ids = torch.randint(0, 64, (1, 32))
    mask = torch.ones_like(ids) if masked else None
    if masked:
        mask[:, 20:] = 0
        regions = list(find(graph_of(transformers.BertModel(config), ids, mask).graph))
        assert [program_of(region).stages[3].mask is not None for region in regions] == [True]
    else:
        check(graph_of(transformers.BertModel(config), ids), 1)


def test_bert_whose_attention_pytorch_writes_out_is_taken_with_its_last_norm() -> None:
    transformers = pytest.importorskip("transformers")
    with sdpa_kernel(SDPBackend.MATH):
        graph = graph_of(transformers.BertModel(bert_config(layers=2)), torch.randint(0, 64, (2, 32)))
    assert sum("softmax" in str(node.target) for node in graph.graph.nodes) == 2
    check(graph, 1)
    (region,) = find(graph.graph)
    assert program_of(region).last is not None
    assert {node.target for node in region.outputs} == {operator.getitem}


class Image(nn.Module):
    """Patches of an image through a block."""

    def __init__(self, *, bias: bool, padding: int = 0) -> None:
        super().__init__()
        self.cut, self.block = nn.Conv2d(3, 128, 4, stride=4, bias=bias, padding=padding), Block()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.block(self.cut(image).flatten(2).transpose(1, 2).contiguous())


FORMATS = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize(
    ("bias", "weights", "pixels"),
    [
        pytest.param(
            *kinds,
            marks=[pytest.mark.nightly] if sum(kind in FORMATS[1:] or kind is True for kind in kinds) % 2 else [],
        )
        for kinds in product([False, True], FORMATS, FORMATS)
    ],
)  # any two of the three meet in the gate
def test_patches_of_an_image_are_a_product(
    bias: bool, weights: torch.memory_format, pixels: torch.memory_format
) -> None:
    model, image = Image(bias=bias), torch.randn(2, 3, 16, 24).half().to(memory_format=pixels)
    model.cut.weight.data = model.cut.weight.data.to(memory_format=weights)
    graph = graph_of(model, image)
    regions = list(find(graph.graph))
    assert [region.name for region in regions] == ["1 transformer blocks", "a convolution of patches"]
    region, values = regions[1], values_of(graph)
    assert unfit(graph.graph, region) is None
    (actual,) = region.build(torch.device("cpu"))(*(values[node] for node in region.inputs))
    expected = values[region.outputs[0]]
    assert actual.stride() == region.outputs[0].meta["val"].stride()
    assert (actual.float() - expected.float()).norm() < 1e-2 * expected.float().norm()


def test_convolutions_whose_patches_overlap_an_edge_are_left_alone() -> None:
    image = torch.randn(2, 3, 16, 24).half().to(memory_format=torch.channels_last)
    graph = graph_of(Image(bias=True, padding=2).to(memory_format=torch.channels_last), image)
    assert [region.name for region in find(graph.graph)] == ["1 transformer blocks"]


class Masked(nn.Module):
    """A block's attention behind its products, with a mask that is made in the graph."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.block, self.kind = Block(), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1])
        mask = {
            "everything": (at >= 0).expand(1, 1, 40, 40),
            "causal": (at[None, :] <= at[:, None])[None, None],
            "every second key": (at % 2 == 0).expand(1, 1, 40, 40),
            "of the input": (x[:, :, 0] > 0)[:, None, None].expand(1, 1, 40, 40),
        }[self.kind]
        return self.block(x, mask)


@pytest.mark.parametrize("kind", ["everything", "causal", "every second key", "of the input"])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_constant_masks_are_not_read(kind: str, backend: SDPBackend) -> None:
    with sdpa_kernel(backend):
        graph = graph_of(Masked(kind), torch.randn(1, 40, 128).half())
    regions = list(find(graph.graph))
    actual = [
        (stage.mask is not None, stage.causal)
        for region in regions
        for stage in program_of(region).stages
        if isinstance(stage, Attention)
    ]
    assert actual == {"everything": [(False, False)], "causal": [(False, True)]}.get(
        kind, [(True, False)] * len(actual)
    )
    if kind in {"everything", "causal"}:
        assert not any("le" in node.name or "ge" in node.name for region in regions for node in region.inputs)
    check(graph, len(regions))


def test_values_that_depend_on_an_input_or_are_random_are_no_constants() -> None:
    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.arange(4).cumsum(0) >= 3, torch.rand(4) > 0.5, x > 0

    (graph,) = inference_graphs(Made(), torch.ones(4))
    results = graph.graph.output_node().args[0]
    values = [constant(node) for node in results]
    assert values[0] is not None
    assert values[0].tolist() == [False, False, True, True]
    assert values[1:] == [None, None]


@pytest.mark.parametrize(
    "change", ["heads of 32", "scaled attention", "an activation that the kernel has not", "a sum that is scaled"]
)
def test_what_differs_from_a_block_is_left_alone(change: str) -> None:
    assert not list(find(graph_of(Block(change=change), torch.randn(1, 40, 128).half()).graph))


def test_blocks_in_float32_or_of_too_many_rows_are_left_alone() -> None:
    assert not list(find(graph_of(Block(), torch.randn(1, 40, 128), dtype=torch.float32).graph))
    assert not list(find(graph_of(Block(), torch.randn(5, 128, 128).half()).graph))


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "GPT-2": lambda layers: pre_norm(128, 768, layers),
    "BERT": lambda layers: post_norm(128, 768, layers),
    "ViT": lambda layers: pre_norm(197, 768, layers, k_major=True, causal=False),
    "sequences that end within tiles": lambda layers: pre_norm(123, 128, layers, length=41),
}


@pytest.mark.parametrize("layers", [2, pytest.param(12, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("blocks", "cluster"), [(132, 1), (132, 2), (120, 4)])
def test_plans_read_what_earlier_stages_write_and_write_everything_once(
    name: str, blocks: int, cluster: int, layers: int
) -> None:
    assert faults(plan_of(PROGRAMS[name](layers), blocks, cluster)) == []


def test_a_plan_without_any_of_its_tasks_is_refused() -> None:
    plan = plan_of(pre_norm(70, 128, 1), 6, 2)
    for number, task in enumerate(plan.tasks):
        assert faults(without_task(plan, number)), task


def test_a_task_that_reads_what_its_own_stage_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(pre_norm(70, 128, 1), 6, 2)
    for stage in range(len(plan.stages) - 1):  # the last one writes no matrix between stages

        def with_its_own(planned: StagePlan, task: Task, stage: int = stage) -> TaskBoxes:
            boxes = touches(planned, task)
            return replace(boxes, reads=(*boxes.reads, *boxes.writes)) if task.stage == stage else boxes

        monkeypatch.setattr(plans, "touches", with_its_own)
        assert any(f"stage {stage} reads" in sentence for sentence in faults(plan)), stage


def test_rows_that_are_too_long_for_a_block_are_refused() -> None:
    with pytest.raises(UserError, match="1024"):
        plan_of(pre_norm(32, 1280, 1), 132, 2)

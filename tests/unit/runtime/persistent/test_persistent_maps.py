"""The boxes of activations and weights that the persistent kernel's loads get, as TMA takes them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tileprof.errors import UserError
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent import driver, persistent_launch
from tileprof.runtime.persistent.driver import MAP_WORDS
from tileprof.runtime.persistent.persistent_launch import Launcher, _heads, _put_stage, max_clusters
from tileprof.runtime.persistent.plan import arranged
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.view import View


class Recorder:
    """Stands for a kernel's arguments: keeps maps and pointers by word."""

    def __init__(self) -> None:
        self.maps, self.words = {}, {}

    def put_map(self, word, address, dtype, sizes, strides, box, steps) -> None:
        assert len(sizes) == len(box) == len(steps) == len(strides) + 1
        self.maps[word] = address, dtype, sizes, strides, box, steps


def put(stage, *, pair=False):
    """Return the maps and pointers of a stage, and their tensors."""
    inputs = {}
    for role, v in stage.operator.views().items():
        inputs[role] = torch.zeros(v.elements, dtype=torch.float16).as_strided(v.shape, v.strides, v.offset)
    result = Recorder()
    _put_stage(result, 0, stage, inputs, SimpleNamespace(stages=(stage,), split=2 if pair else 1))
    return result, inputs


def test_a_product_loads_its_tile_of_rows_and_of_weights() -> None:
    stage = stage_plans(gelu_mlp(100, (64, 48), (64, 96), 328, 200))[0]
    result, inputs = put(stage)
    address, dtype, sizes, strides, box, steps = result.maps[0]
    assert (address, dtype) == (inputs["a"].data_ptr(), "float16")
    assert (sizes, strides) == ((328, 100, 1, 1), (656, 65600, 65600))
    assert (box, steps) == ((64, 64, 1, 1), (1, 1, 1, 1))
    assert result.maps[MAP_WORDS] == (
        inputs["b"].data_ptr(),
        "float16",
        (328, 1, 200),
        (656, 656),
        (64, 1, 48),
        (1, 1, 1),
    )


def test_a_gate_loads_half_of_its_weight_rows_at_a_time() -> None:
    result, _ = put(stage_plans(gated_mlp(64, (64, 88), (64, 128), 512, 352))[0])
    assert result.maps[MAP_WORDS][2] == (512, 1, 704)
    assert result.maps[MAP_WORDS][4] == (64, 1, 88)


def test_a_block_of_those_abreast_loads_its_columns_and_of_a_gate_what_each_warpgroup_multiplies() -> None:
    stages = stage_plans(gelu_mlp(128, (128, 96), (128, 192), 512, 384))
    wide = arranged(stages, (False, True), 2)
    assert [put(stage, pair=True)[0].maps[MAP_WORDS][4] for stage in wide] == [(64, 1, 96)] * 2
    for tokens, box in ((128, 48), (64, 24)):
        gated = arranged(stage_plans(gated_mlp(tokens, (tokens, 192), (tokens, 96), 512, 384)), (True, False), 4)
        assert gated[0].columns == 96
        assert put(gated[0], pair=True)[0].maps[MAP_WORDS][4] == (64, 1, box)


def test_each_of_a_pair_loads_its_rows_and_half_of_the_weights() -> None:
    result, _ = put(stage_plans(gelu_mlp(512, (256, 96), (256, 128), 512, 384))[0], pair=True)
    assert result.maps[0][4] == (64, 128, 1, 1)
    assert result.maps[MAP_WORDS][4] == (64, 1, 48)


def test_a_convolution_loads_its_rows_and_those_around_them_once_for_all_taps() -> None:
    result, inputs = put(stage_plans(convolution_pair(8, 56, 64, (112, 32)))[0])
    assert result.maps[0][2:] == ((64, 56, 56, 8), (128, 7168, 401408), (64, 58, 4, 1), (1, 1, 1, 1))
    assert result.maps[MAP_WORDS][2:] == ((64, 9, 64), (128, 1152), (64, 1, 32), (1, 1, 1))
    pointers = [result.words[3 * MAP_WORDS + n] for n in range(3)]
    assert pointers == [inputs["out"].data_ptr(), inputs["bias"].data_ptr(), 0]


def test_attention_loads_boxes_of_a_head_and_zeros_for_keys_that_no_query_sees() -> None:
    out = View.contiguous("out", (4, 100, 128), "float16")
    q, k, v = (
        View("qkv", (heads, rows, 128), (128, 1024, 1), "float16", at * 128)
        for heads, rows, at in ((4, 100, 0), (2, 150, 4), (2, 150, 6))
    )
    product = Gemm(View.contiguous("x", (150, 64), "float16"), View("w", (64, 1024), (1, 64), "float16"),
                   View.contiguous("qkv", (150, 1024), "float16"), tile=(128, 128))  # fmt: skip
    for causal, keys in ((True, 100), (False, 150)):
        stage = stage_plans(Chain(("qkv", "a"), (product, Attention(q, k, v, out, rows=64, causal=causal))))[1]
        result, inputs = put(stage)
        for place, role, sizes in (
            (0, "k", (128, 2, keys, 1)),
            (1, "q", (128, 4, 100, 1)),
            (2, "v", (128, 2, keys, 1)),
        ):
            address, _, *shape, steps = result.maps[place * MAP_WORDS]
            assert address == inputs[role].data_ptr()
            assert shape == [sizes, (256, 2048, 2048 * inputs[role].shape[1]), (64, 1, 64, 1)]
            assert steps == (1, 1, 1, 1)
        assert result.words[3 * MAP_WORDS] == inputs["out"].data_ptr()


def test_a_stride_is_one_of_the_box() -> None:
    x, w = (View.contiguous(n, shape, "float16") for n, shape in (("x", (4, 28, 28, 64)), ("w", (64, 1, 1, 64))))
    conv = Conv2d(x, w, View.contiguous("y", (4, 14, 14, 64), "float16"), tile=(98, 64), stride=2)
    result, _ = put(stage_plans(Chain(("narrow",), (conv,)))[0])
    assert result.maps[0][4:] == ((64, 27, 13, 1), (1, 2, 2, 1))  # 14 of 27 columns, 7 of 13 rows


def test_what_tma_cannot_address_is_refused() -> None:
    stage = stage_plans(gelu_mlp(64, (64, 48), (64, 96), 512, 384))[0]
    values = {role: torch.zeros(v.elements + 8, dtype=torch.float16) for role, v in stage.operator.views().items()}
    values["a"] = values["a"][1:]
    with pytest.raises(UserError, match="a of gemm begins at an address that is not a multiple of 16"):
        _put_stage(Recorder(), 0, stage, values, False)


def test_arguments_are_made_once_for_each_set_of_addresses_and_the_oldest_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
    result, grids = [], []
    launcher = object.__new__(Launcher)
    launcher.plan, launcher.device = SimpleNamespace(clusters=2, split=2), torch.device("cpu")
    launcher.options, launcher._cached_arguments, launcher._whole = SimpleNamespace(programmatic=False), {}, False
    launcher._function = SimpleNamespace(launch=lambda *arguments, **_: grids.append(arguments[3]))
    monkeypatch.setattr(Launcher, "_arguments", lambda *_: result.append(len(result)) or result[-1])
    shared = (torch.zeros(1),) * 4
    inputs = [torch.zeros(8) for _ in range(persistent_launch._MOST_PREPARED + 2)]
    for tensor in [*inputs, inputs[-1], inputs[0]]:
        launcher.launch([{"a": tensor}], shared)
    assert grids == [*range(len(inputs)), len(inputs) - 1, len(inputs)]
    assert len(launcher._cached_arguments) == persistent_launch._MOST_PREPARED


def test_the_attributes_of_a_launch_reach_the_driver(monkeypatch) -> None:
    records = []

    def call(name, config, *_):
        result = config._obj
        attributes = (driver._Attribute * result.count).from_address(result.attributes) if result.count else ()
        records.append((name, list(result.sizes), [(a.id, a.value[0]) for a in attributes]))

    monkeypatch.setattr(driver, "_call", call)
    function = object.__new__(driver.Function)
    function._handle, function._shared_bytes = None, 9
    for programmatic, cooperative in ((False, False), (True, False), (False, True), (True, True)):
        function.launch(4, 384, 0, driver.Arguments(8), programmatic=programmatic, cooperative=cooperative)
    assert {name for name, _, _ in records} == {"cuLaunchKernelEx"}
    assert records[0][1] == [4, 1, 1, 384, 1, 1, 9]
    assert [message for _, _, message in records] == [[], [(6, 1)], [(2, 1)], [(6, 1), (2, 1)]]


def test_each_gpu_is_asked_how_many_clusters_it_holds(monkeypatch) -> None:
    device = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device[0])
    request = SimpleNamespace(clusters=lambda split, threads: 100 * (device[0] + 1) // split)
    monkeypatch.setattr(persistent_launch, "RESIDENT", SimpleNamespace(loaded=lambda _config, _device: request))
    persistent_launch._max_clusters.cache_clear()
    matches = []
    for device[0] in (0, 1, 0):
        matches.append(max_clusters(2))
    persistent_launch._max_clusters.cache_clear()
    assert matches == [50, 100, 50]


def test_a_cluster_finds_its_tasks_and_the_first_of_them_in_one_place() -> None:
    tasks = np.arange(24, dtype=np.int32).reshape(3, 8)
    plan = SimpleNamespace(task_ptr=np.array([0, 2, 3, 3], np.int32))
    heads = _heads(plan, tasks)
    assert heads.dtype == np.int32
    assert heads[:2].tolist() == [[0, 2, 0, 0, *tasks[0]], [2, 3, 0, 0, *tasks[2]]]
    assert heads[2, :2].tolist() == [3, 3]

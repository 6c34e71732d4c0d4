import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.viz.tables.fold import fold, fold_launches


def expansion(items, base=0):
    for item in items:
        if "launch" in item:
            yield base + item["launch"]
        else:
            for copy in range(item["count"]):
                yield from expansion(item["items"], base + item["start"] + copy * item["period"])


def groups(items):
    for item in items:
        if "launch" not in item:
            yield item
            yield from groups(item["items"])


def copies_agree(items, keys, base=0):
    for item in items:
        if "launch" in item:
            continue
        begin, period = base + item["start"], item["period"]
        copies = [keys[begin + c * period : begin + (c + 1) * period] for c in range(item["count"])]
        assert all(copy == copies[0] for copy in copies)
        copies_agree(item["items"], keys, begin)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_fold_holds_every_launch_once_in_order_and_only_equal_copies(keys):
    items = fold(keys, [0] * len(keys))
    assert list(expansion(items)) == list(range(len(keys)))
    copies_agree(items, keys)


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 6))
def test_repeated_layers_become_one(layers, length):
    keys = [100, *(list(range(length)) * layers), 200]
    items = fold(keys, [0] * len(keys))
    actual = [g for g in items if "period" in g]
    if length * (layers - 1) >= 3:
        assert [(g["start"], g["period"], g["count"]) for g in actual] == [(1, length, layers)]


def test_layers_within_layers_fold_twice():
    layer = [1, *([2, 3] * 5), 4]
    items = fold(layer * 3, [0] * len(layer) * 3)
    assert [(g["period"], g["count"]) for g in groups(items)] == [(12, 3), (2, 5)]


def test_a_copy_begins_where_the_layer_number_changes():
    # The launch before the first layer looks like a layer's last one, so folding could begin there as well.
    keys = [9, 1, 2, 9, 1, 2, 9, 1, 2, 9, 5]
    numbers = [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    (group,) = groups(fold(keys, numbers))
    assert (group["start"], group["period"], group["count"]) == (1, 3, 3)


def test_modules_that_differ_in_digits_only_are_copies():
    rows = [(f"h.{i}.{name}", name, 4 + (i == 2 and name == "b")) for i in range(4) for name in "abcd"]
    frame = pd.DataFrame(rows, columns=["module", "kernel", "grid_x"]).assign(op="", grid_y=1, grid_z=1)
    (group,) = groups(fold_launches(frame[frame["grid_x"] == 4].iloc[:8]))
    assert group["count"] == 2
    assert list(expansion(fold_launches(frame))) == list(range(16))
    assert all(g["count"] == 2 for g in groups(fold_launches(frame)))  # the third layer has another grid


def test_no_launches_fold_to_nothing():
    assert fold(np.empty(0, np.int64), np.empty(0, np.int64)) == []


def program(modules):
    """Return launches of different kernels, which do not repeat, in these modules."""
    rows = range(len(modules))
    return pd.DataFrame({
        "kernel": [f"k{i}" for i in rows], "op": "aten::mm", "module": modules, "grid_x": 1, "grid_y": 1, "grid_z": 1,
    })  # fmt: skip


UNET = [
    *(f"unet.enc.{k}.{part}" for k in range(3) for part in ("conv1", "norm1", "act", "conv2", "norm2", "act", "pool")),
    *("unet.mid.conv1", "unet.mid.norm1", "unet.mid.act", "unet.up"),
    *(f"unet.dec.{k}.{part}" for k in range(3) for part in ("conv1", "norm1", "act", "conv2", "norm2", "act")),
    "",
]


def test_a_large_program_is_folded_by_module_and_loses_no_launch():
    items = fold_launches(program(UNET))
    assert list(expansion(items)) == list(range(len(UNET)))
    by_module = {item["module"]: item for item in items if "module" in item}
    assert list(by_module) == [
        "unet.enc.0",
        "unet.enc.1",
        "unet.enc.2",
        "unet.mid",
        "unet.dec.0",
        "unet.dec.1",
        "unet.dec.2",
    ]
    for name, item in by_module.items():
        assert item["count"] == 1
        assert all(UNET[i].startswith(name) for i in range(item["start"], item["start"] + item["period"]))


def test_one_module_around_everything_is_open_and_its_own_launches_stand_together():
    modules = ["net"] * 9 + [f"net.layers.{k}.{part}" for k in range(5) for part in "abcdefg"] + ["net.norm", "head"]
    items = fold_launches(program(modules))
    assert list(expansion(items)) == list(range(len(modules)))
    names = [item.get("module", modules[item["launch"]] if "launch" in item else None) for item in items]
    assert names == ["net", *(f"net.layers.{k}" for k in range(5)), "net.norm", "head"]


def test_a_small_program_is_drawn_launch_by_launch():
    assert fold_launches(program(UNET[:20])) == [{"launch": i} for i in range(20)]


@given(st.lists(st.sampled_from(["", "a", "a.0", "a.0.b", "a.1.b", "a.1.c", "d.e.2", "d.e.f"]), max_size=80))
@settings(max_examples=60)
def test_folding_by_module_keeps_order_and_every_launch(modules):
    items = fold_launches(program(modules))
    assert list(expansion(items)) == list(range(len(modules)))
    assert all(modules[item["start"]] for item in items if "module" in item)

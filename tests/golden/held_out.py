"""Programs drawn to judge the model recorder by: `python held_out.py NAME [DEVICE]`, as `clients.py`.

`LISTS` are seven draws of ten; each was committed before any of its programs was recorded. Rules may be corrected with
a draw since the next one was committed, so not on the seventh. They were made by `python held_out.py --draw cpu first
20261124`, `... second 20261128`, `... third 20261129`, `... fourth 20261130`, `... fifth 20261201`, `... sixth
20261202` and `... seventh 20261203` with torch 2.13, transformers 5.17, timm 1.0.31, torchvision 0.28 and
torch_geometric 2.8.1: a fixed number per library, types and training drawn, and no model of another list. What does not
run on the CPU in fp32, is too large or takes too long is passed over for the next of the draw. diffusers is not on the
machine that records. Of each module of timm its first model is a candidate; since these are used up, a drawn one of
each module that no list before the seventh has. Of torch_geometric, layers with two numbers of channels were
candidates, and since the seventh those of `ARGUMENTS`, too.

The lists ``development`` (`python held_out.py --draw cpu development 20261202`) and ``development_second`` (`...
20261204`) judge nothing: they have 55 programs and 31 more, none of the other lists, on which rules are mended. The
second and the third are without densenet161, which was drawn, too: a sibling of it is in the seventh list.
"""

import json
import random
import signal
import sys
from pathlib import Path

import torch
from clients import DEVICE, graph, main
from torch import nn

LISTS = {
    name: Path(__file__).with_name(f"held_out{suffix}.json")
    for name, suffix in (
        ("first", ""),
        ("second", "_second"),
        ("third", "_third"),
        ("fourth", "_fourth"),
        ("fifth", "_fifth"),
        ("sixth", "_sixth"),
        ("seventh", "_seventh"),
    )
}
LISTS |= {n: Path(__file__).with_name(f"{n}.json") for n in ("development", "development_second", "development_timed")}
NUMBERS = {"timm": 3, "transformers": 4, "torchvision": 1, "torch_geometric": 2}
DEVELOPMENT = {
    "development": {"timm": 16, "transformers": 31, "torchvision": 5, "torch_geometric": 3},
    "development_second": {"timm": 14, "transformers": 20, "torchvision": 5, "torch_geometric": 1},
    "development_timed": {"timm": 36, "torchvision": 5, "transformers": 16, "torch_geometric": 3},
}
RESERVE = {"timm": 2, "transformers": 2, "torchvision": 1, "torch_geometric": 1}
"""Reserves, drawn after those, in case the recording machine has a version of the library that lacks one."""
KNOWN = ("mamba", "t5", "whisper", "qwen3_moe", "convnext_atto", "GCNConv", "GATConv")
"""Those of `clients.py`, as the candidates have them."""
TYPES = ("float32", "float16", "bfloat16")
MOST_PARAMETERS = 30_000_000
MOST_SECONDS, MOST_DEVELOPMENT_SECONDS = 60, 15
SHRUNK = {
    256: ("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "encoder_hidden_size", "rotary_dim"),
    2: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
        "num_decoder_layers"),
    4: ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
        "num_key_value_heads", "num_kv_heads"),
    1024: ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "hidden_dim",
           "ffn_hidden_size"),
    64: ("head_dim", "d_kv"),
    4000: ("vocab_size",),
}  # fmt: skip
"""Attributes of configurations that are reduced, and their values."""

ARGUMENTS = {
    "ChebConv": lambda layer: layer(64, 64, K=3),
    "SSGConv": lambda layer: layer(64, 64, alpha=0.1),
    "LGConv": lambda layer: layer(),
    "GINConv": lambda layer: layer(perceptron(64)),
    "EdgeConv": lambda layer: layer(perceptron(128)),
    "AntiSymmetricConv": lambda layer: layer(64),
    "DirGNNConv": lambda layer: layer(sage()),
    "GPSConv": lambda layer: layer(64, sage()),
}
"""How layers of torch_geometric are made that take other arguments than two numbers of channels."""


def perceptron(channels):
    return nn.Sequential(nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, 64))


def sage():
    import torch_geometric

    return torch_geometric.nn.conv.SAGEConv(64, 64)


def of_timm(name):
    import timm

    return timm.create_model(name), (torch.randn(2, 3, 224, 224),)


def of_torchvision(name):
    import torchvision

    try:
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    except TypeError:
        model = torchvision.models.get_model(name, weights=None)
    return model, (torch.randn(2, 3, 224, 224),)


def of_transformers(name):
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    for value, attributes in SHRUNK.items():
        for attribute in attributes:
            if isinstance(getattr(config, attribute, None), int):
                setattr(config, attribute, value)
    model = AutoModel.from_config(config)
    if hasattr(config, "vocab_size"):
        return model, (torch.randint(5, min(4000, config.vocab_size), (2, 128)),)
    side = getattr(config, "image_size", 224)
    return model, (torch.randn(2, 3, side, side),)


def of_torch_geometric(name):
    import torch_geometric

    layer = getattr(torch_geometric.nn.conv, name)
    make = ARGUMENTS.get(name, lambda layer: layer(64, 64))
    first, second = make(layer), make(layer)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    return Network(), graph()


def tensors(out):
    """The floating-point tensors of whatever a model returns."""
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() else []
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return [t for v in values for t in tensors(v)]


def entries(*lists):
    """Return the programs of some lists (of all, if none is named)."""
    paths = [LISTS[name] for name in lists or LISTS]
    return [entry for path in paths if path.exists() for entry in json.loads(path.read_text())]


def program(entry):
    """Return a program of a list."""
    dtype = getattr(torch, entry["dtype"])

    def make():
        model, inputs = globals()[f"of_{entry['library']}"](entry["model"])
        model = model.train(entry["training"]).to(DEVICE, dtype)
        inputs = [i.to(DEVICE, dtype if i.is_floating_point() else i.dtype) for i in inputs]
        if not entry["training"]:
            return lambda: tensors(model(*inputs))[0]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def run():
            optimizer.zero_grad()
            loss = tensors(model(*inputs))[0].float().square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return run

    make.__name__ = entry["name"]
    return make


def candidates(library, chance=None, *, timed=False):
    """Return names of models: of timm the first of each module, or with ``chance`` a drawn one of each new module, or
    to be ``timed`` one of each module that the seventh list does not have.
    """
    if library == "timm":
        import timm

        if chance is None:
            return [n for m in timm.list_modules() for n in timm.list_models(module=m)[:1]]
        if timed:
            judged = {entry["model"] for entry in entries("seventh")}
            modules = [timm.list_models(module=m) for m in timm.list_modules()]
            return [chance.choice(names) for names in modules if names and judged.isdisjoint(names)]
        known = {entry["model"] for entry in entries() if entry["library"] == "timm"} | set(KNOWN)
        modules = [timm.list_models(module=m) for m in timm.list_modules()]
        return [chance.choice(names) for names in modules if names and known.isdisjoint(names)]
    if library == "torchvision":
        import torchvision

        return [n for n in torchvision.models.list_models() if not n.startswith("quantized")]
    if library == "torch_geometric":
        import torch_geometric

        return [n for n in torch_geometric.nn.conv.__all__ if n.endswith("Conv")]
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def draw(list_name, seed):
    """Write a list."""
    chance, drawn = random.Random(seed), []
    others = [entry["model"] for entry in entries(*(n for n in LISTS if n != list_name))]
    development = list_name in DEVELOPMENT
    limit_s = MOST_DEVELOPMENT_SECONDS if development else MOST_SECONDS
    timed = list_name == "development_timed"
    for library, number in (DEVELOPMENT.get(list_name) or NUMBERS).items():
        reserve = 0 if development else RESERVE[library]
        drawing = chance if timed or list_name in ("seventh", "development_second") else None
        names = sorted(candidates(library, drawing, timed=timed))
        chance.shuffle(names)
        draws = 0
        for name in names:
            dtype = "float32" if library == "torch_geometric" else chance.choice(TYPES)
            training = chance.random() < (0.65 if timed else 0.25)
            label = f"{library}_{name}".lower().replace("-", "_").replace(".", "_") + ("_step" if training else "")
            entry = {"name": label, "library": library, "model": name, "dtype": dtype, "training": training}
            if name not in (*KNOWN, *others) and runs(entry, limit_s):
                drawn.append(entry | {"reserve": draws >= number})
                draws += 1
                sys.stderr.write(f"{label} {dtype}: {draws} of {number}\n")
            if draws == number + reserve:
                break
    LISTS[list_name].write_text(json.dumps(drawn, indent=1) + "\n")


def runs(entry, limit_s):
    """Return whether the program is small enough and runs on the CPU in that many seconds."""
    signal.signal(signal.SIGALRM, too_slow)
    try:
        torch.manual_seed(0)
        with torch.device("cpu" if entry["library"] == "torch_geometric" else "meta"):  # it copies its graph
            model, _ = globals()[f"of_{entry['library']}"](entry["model"])
        if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
            return False
        with torch.set_grad_enabled(entry["training"]):
            signal.alarm(limit_s)
            program(entry | {"dtype": "float32"})()()
    except Exception as error:  # noqa: BLE001 - whatever a library raises: the next one is tried
        sys.stderr.write(f"{entry['name']} is passed over: {type(error).__name__}: {str(error)[:100]}\n")
        return False
    else:
        return True
    finally:
        signal.alarm(0)


def too_slow(*_):
    message = "it takes too long"
    raise TimeoutError(message)


if __name__ == "__main__":
    if sys.argv[1] == "--draw":
        draw(sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], [program(e) for e in entries()])

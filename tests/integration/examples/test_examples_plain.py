"""The examples run without a recorder and without a network, and compute what they claim."""

import re
import subprocess
import sys
from argparse import Namespace
from importlib import import_module

import pytest

torch = pytest.importorskip("torch")

SMALL = {
    "gpt2": ["--layers", "1", "--tokens", "16"],
    "bert": ["--layers", "1", "--tokens", "16"],
    "llama": ["--layers", "1", "--tokens", "16"],
    "mlp": ["--preset", "llama", "--tokens", "1"],
    "resnet38": ["--image", "32"],
    "vgg19": ["--image", "32"],
    "gru": ["--steps", "3", "--layers", "2", "--hidden", "32"],
    "lstm": ["--steps", "3", "--layers", "2", "--hidden", "32"],
    "deepspeech2": ["--layers", "2", "--hidden", "16", "--frames", "6", "--batch", "1"],
    "gnmt": ["--layers", "3", "--hidden", "16", "--words", "3", "--vocabulary", "40", "--batch", "1"],
    "deepbench": ["--shape", "gemm-35x700x2048"],
    "moe": ["--tokens", "32", "--width", "64", "--inner", "96"],
    "cloth": ["--batch", "1", "--size", "12", "--steps", "2"],
    "tree_lstm": ["--leaves", "5", "--width", "16"],
    "dynamic": ["--blocks", "2", "--channels", "16", "--size", "6"],
    "inception": ["--cells", "1", "--channels", "32", "--size", "6"],
}
LIBRARIES = {"gpt2": "transformers", "bert": "transformers", "llama": "transformers", "branched": "torchvision"}
LINE = r"{}: output \S+ \w+, checksum \S+\n"


def example(name):
    """Return the module of an example."""
    return import_module(f"tileprof.examples.{name}")


def output_of(name, argv, capsys):
    """Return what an example prints."""
    example(name).main(argv)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_an_example_prints_one_line_with_a_checksum_that_repeats(name, capsys):
    first = output_of(name, SMALL[name], capsys)
    assert re.fullmatch(LINE.format(name), first)
    assert output_of(name, SMALL[name], capsys) == first
    assert output_of(name, [*SMALL[name], "--seed", "1"], capsys) != first


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.nightly), "gru"])
def test_an_example_runs_as_a_module_and_keeps_stdout_to_its_line(name, tmp_path):
    command = [sys.executable, "-m", f"tileprof.examples.{name}", *SMALL[name]]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(LINE.format(name), result.stdout)


def test_gpt2_trains_one_step(capsys):
    line = output_of("gpt2", ["--layers", "1", "--tokens", "8", "--train"], capsys)
    # Random weights predict nothing, so the loss is close to ln(50257) = 10.8.
    assert float(line.split()[-1]) == pytest.approx(10.8, abs=1)


def test_llama_70b_runs_on_fake_tensors(capsys):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        line = output_of("llama", ["--preset", "70b", "--layers", "2", "--tokens", "64"], capsys)
    assert line == "llama: output 1x64x32000 bfloat16, checksum none (tensors without values)\n"


@pytest.mark.parametrize("name", [n for n in SMALL if n not in {"moe", "cloth", "dynamic"}])
def test_an_example_without_data_dependence_runs_on_fake_tensors(name, capsys):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert "without values" in output_of(name, SMALL[name], capsys)


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_its_library_an_example_says_what_to_type(name, monkeypatch):
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    with pytest.raises(SystemExit, match=f"pip install {LIBRARIES[name]}"):
        example(name).main(SMALL.get(name, []))


@pytest.mark.parametrize("kind", ["googlenet", "inception_v3", "nasnetalarge", "pnasnet5large"])
def test_networks_with_branches_run_where_their_libraries_are(kind, capsys):
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    argv = ["--kind", kind, "--image", "96", "--classes", "10"]
    first = output_of("branched", argv, capsys)
    assert re.fullmatch(LINE.format("branched"), first)
    assert output_of("branched", argv, capsys) == first


@pytest.mark.parametrize(
    ("name", "argv", "complaint"),
    [
        ("gpt2", ["--tokens", "0"], "expected an integer of at least 1, got '0'"),
        ("gpt2", ["--tokens", "1", "--train"], "expected --tokens 2 or more"),
        ("llama", ["--preset", "71b"], "invalid choice: '71b'"),
        ("moe", ["--top", "9"], "expected at most --experts 8"),
        ("vgg19", ["--image", "20"], "at least 32 pixels"),
        ("branched", ["--image", "20"], "at least 64 pixels"),
    ],
)
def test_a_bad_option_ends_in_a_sentence(name, argv, complaint, capsys):
    with pytest.raises(SystemExit) as error:
        example(name).main(argv)
    assert error.value.code == 2
    assert complaint in capsys.readouterr().err


def convolutions(model, image):
    """Return (channels in, channels out, kernel, output pixels) of each convolution that runs."""
    records = []
    hooks = [
        layer.register_forward_hook(
            lambda layer, _, out: records.append(
                (layer.in_channels, layer.out_channels, layer.kernel_size[0], out.shape[-1])
            )
        )
        for layer in model.modules()
        if isinstance(layer, torch.nn.Conv2d)
    ]
    with torch.no_grad():
        model(torch.zeros(1, 3, image, image))
    for hook in hooks:
        hook.remove()
    return records


def test_resnet38_has_the_convolutions_of_the_cusync_table():
    actual = [shape for shape in convolutions(example("resnet38").build(), 224) if shape[2] == 3]
    table = [(64, 56, 3), (128, 28, 4), (256, 14, 6), (512, 7, 3)]
    assert actual == [(c, c, 3, pixels) for c, pixels, blocks in table for _ in range(2 * blocks)]


def test_vgg19_has_the_convolutions_of_the_cusync_benchmark():
    actual = convolutions(example("vgg19").build(56), 56)
    assert len(actual) == 16
    for channels, pixels in ((64, 56), (128, 28), (256, 14), (512, 7)):
        assert (channels, channels, 3, pixels) in actual


def test_channels_last_changes_the_layout_and_not_the_result():
    from tileprof.examples.parts.convolution import random_images

    results = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        options = Namespace(channels_last=channels_last, batch=1, image=32)
        model, images = random_images(example("resnet38").build(), options)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert images.is_contiguous(memory_format=layout)
        assert model.stem[0].weight.is_contiguous(memory_format=layout)
        with torch.no_grad():
            results.append(model(images))
    torch.testing.assert_close(*results)


def test_the_mixture_routes_each_token_to_its_best_experts():
    torch.manual_seed(0)
    layer = example("moe").MixtureOfExperts(Namespace(experts=4, top=2, width=16, inner=24))
    x = torch.randn(11, 16)
    with torch.no_grad():
        shares = layer.router(x).softmax(-1)
        # Every expert sees every token; the gates of all but the best two are zero.
        gates = torch.where(shares >= shares.sort(descending=True).values[:, 1:2], shares, 0)
        dense = sum(gates[:, [e]] / gates.sum(-1, keepdim=True) * expert(x) for e, expert in enumerate(layer.experts))
        torch.testing.assert_close(layer(x), dense)


@pytest.mark.parametrize(("cell", "fused"), [("GRUCell", "GRU"), ("LSTMCell", "LSTM")])
def test_the_unrolled_network_computes_what_the_fused_one_does(cell, fused):
    from tileprof.examples.parts.recurrent import Unrolled

    torch.manual_seed(0)
    unrolled = Unrolled(getattr(torch.nn, cell), layers=2, hidden=8)
    reference = getattr(torch.nn, fused)(8, 8, num_layers=2)
    for number, layer in enumerate(unrolled.layers):
        for name, weight in layer.named_parameters():
            getattr(reference, f"{name}_l{number}").data.copy_(weight.data)
    x = torch.randn(5, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(unrolled(x), reference(x)[0])


@pytest.mark.parametrize(
    ("preset", "up", "down"), [("gpt3", (6144, 12288), (12288, 6144)), ("llama", (5632, 8192), (8192, 2816))]
)
def test_the_mlp_has_the_gemms_of_the_cusync_benchmark(preset, up, down):
    with torch.device("meta"):
        model = example("mlp").PRESETS[preset]()
    assert [tuple(weight.shape) for weight in model.parameters()] == [up, down]


@pytest.fixture(autouse=True)
def _default_type_is_left_alone():
    before = torch.get_default_dtype()
    yield
    assert torch.get_default_dtype() == before

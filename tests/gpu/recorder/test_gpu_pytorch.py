"""PyTorch programs do not change, every changed byte is recorded, and names are right."""

import json
import sys

import pytest

from tileprof.trace import load, validate

EAGER = ("gemm_pair", "gemm_fp32", "layer_norm", "softmax", "attention", "convolution", "gpt2")


@pytest.mark.parametrize("name", EAGER)
def test_every_byte_that_changed_is_in_a_recorded_write_and_results_are_untouched(record, golden, plain, name):
    result = record(*golden(name), capture_only=True, verify=True, passes=("accesses",))
    assert result.output == plain(*golden(name))
    trace = load(result.path)
    assert validate(trace) == []
    assert "write check" not in result.messages or ", 0 of them outside every recorded write" in result.messages
    assert "conservative" not in set(trace.launches.coverage)


def test_a_cublas_gemm_is_written_in_disjoint_rectangles_that_cover_the_result(record, golden):
    trace = load(record(*golden("gemm_pair"), capture_only=True, passes=("accesses",)).path)
    for launch in range(2):
        boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
        writes = boxes.take(boxes.mode == 1)
        assert trace.launches.coverage[launch] == "exact"
        area = (writes.length * writes.count_0 * writes.count_1).sum()
        assert area == (256 * 1024 * 2, 256 * 512 * 2)[launch]


def test_the_same_model_eager_and_in_a_graph_touches_the_same_bytes(record, golden):
    result = record(*golden("gpt2_graph"), capture_only=True)
    trace = load(result.path)
    assert validate(trace) == []
    launches = trace.launches
    assert (launches.graph == 0).sum() > 30
    assert "conservative" not in set(launches.coverage)
    norms = launches[launches.kernel.str.contains("layer_norm")]
    assert norms.footprint.nunique() == 1, "layer norms of all layers touch the same bytes relative to their operands"
    assert (launches.op[launches.kernel.str.contains("nvjet")] == "aten::addmm").all()
    assert (launches.duration_ns[launches.kernel.str.contains("nvjet")] > 1000).all()


def test_operators_modules_and_parameters_have_names(record, golden):
    trace = load(record(*golden("gpt2"), capture_only=True, passes=("accesses", "time")).path)
    launches = trace.launches
    assert "h.1.mlp.c_fc" in set(launches.module)
    assert launches.op[launches.module == "ln_f"].tolist() == ["aten::native_layer_norm"]
    names = set(trace.buffers.name[trace.buffers.kind == "parameter"])
    assert {"wte.weight", "h.0.attn.c_attn.weight", "ln_f.bias"} <= names
    assert launches.footprint.nunique() < len(launches) * 0.6, "the second layer repeats the first"


def test_compiled_programs_are_recorded_and_stay_compiled(record, golden):
    trace = load(record(*golden("gpt2_compiled"), capture_only=True, passes=("accesses", "time")).path)
    assert validate(trace) == []
    assert trace.launches.kernel.str.startswith("triton_").sum() > 5
    assert "conservative" not in set(trace.launches.coverage)


TRAINING = """
import json, sys, torch, tileprof
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(512, 64)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.gru, self.bag = torch.nn.GRUCell(64, 64), torch.nn.EmbeddingBag(512, 64)
    def forward(self, x):
        y = self.layer(self.embed(x) + self.embed(x.flip(0)))
        z = self.gru(y[:, 0] + self.bag(x), y[:, 1])
        logits = z @ self.embed.weight.T
        return y[x > 100].square().mean() + z.sum() + y[:, x[0] % 16].std() + logits.logsumexp(1).sum()
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
tokens = torch.randint(512, (8, 16), device="cuda")
def step():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(tokens)
    loss.backward()
    optimizer.step()
    return loss.item()
step(), step()
if len(sys.argv) == 1:
    with tileprof.capture():
        print(step())
    sys.exit()
with torch.profiler.profile() as profile:
    step()
profile.export_chrome_trace(sys.argv[1])
"""


def test_a_training_step_launches_what_a_plain_profile_shows_under_the_same_operators(record, plain, tmp_path):
    """CUPTI's profile of the program without the recorder has the kernels in order, and the operators around each."""
    script, profile = tmp_path / "training.py", tmp_path / "profile.json"
    script.write_text(TRAINING)
    result = record(sys.executable, script, capture_only=True, passes=("accesses",))
    assert result.output == plain(sys.executable, script)
    plain(sys.executable, script, profile)
    expected = profiled_launches(json.loads(profile.read_text())["traceEvents"])
    launches = load(result.path).launches
    launches = launches[~launches.kernel.str.startswith(("memset", "memcpy"))]
    assert [kernel.replace(" ", "") for kernel in launches.kernel] == [
        kernel.replace(" ", "") for kernel, _ in expected
    ]
    names = [op.rpartition("::")[0] + "::" + op.rpartition("::")[2].partition(".")[0] for op in launches.op]
    assert [name for name, (_, around) in zip(names, expected, strict=True) if name not in around] == []
    assert {"aten::add_", "aten::embedding_dense_backward"} <= set(names)
    assert "add gradients" not in result.messages


def profiled_launches(events):
    """Return name and surrounding operators of each kernel, in the order in which a program launched them."""
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in {"cuda_runtime", "cuda_driver"}}
    operators = [e for e in events if e.get("cat") == "cpu_op"]
    rows = []
    for kernel in (e for e in events if e.get("cat") == "kernel"):
        call = calls[kernel["args"]["correlation"]]
        around = {
            op["name"]
            for op in operators
            if op["tid"] == call["tid"] and op["ts"] <= call["ts"] <= op["ts"] + op["dur"]
        }
        rows.append((call["ts"], kernel["name"], around))
    return [(name.replace(" ", ""), around) for _, name, around in sorted(rows, key=lambda row: row[0])]

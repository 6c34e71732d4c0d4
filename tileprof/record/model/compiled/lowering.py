"""Inductor for a GPU that is not there: from Dynamo's graph to wrappers that can be run on fake tensors.

AOTAutograd traces the graph on the CPU, where gradients need no GPU; what it hands to Inductor, forward and backward,
moves to the GPU first: Inductor then decides about fusion, layouts and kernels as it does there. Kernels are written,
not compiled.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from tileprof.record.cuda.inprocess import tileprof_inductor
from tileprof.record.model.compiled import choices, target, wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tileprof.devices import Device
    from tileprof.record.model.compiled.wrapper import Listener

GPU = torch.device("cuda", 0)

Run = Callable[[list[Any]], Any]
"""Calls a wrapper with its inputs on the GPU, fake; what it returns is there, too."""

_SETTINGS = {
    "fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1, "triton.cudagraphs": False,
    "cpp_wrapper": False, "triton.cudagraph_trees": False, "benchmark_kernel": False, "triton.store_cubin": False,
    "triton.autotune_at_compile_time": False, "graph_partition": False, "freezing": False,
}  # fmt: skip
"""Settings that only matter where kernels are compiled or run."""


def lower(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: dict[str, Any],
    device: Device,
    listener: Listener,
    runner: Callable[[Run, Sequence[Any]], Any],
) -> Callable[..., Any]:
    """Return a function of fake tensors on the CPU that runs the wrappers of ``graph``, forward now and backward later.

    ``runner(run, arguments)`` is called where a wrapper is to run: it brings the arguments to the GPU and the results
    back. Raises whatever Inductor raises.
    """
    with _silence():
        inductor: Any = __import__("torch._inductor.compile_fx", fromlist=["compile_fx"])

    def inner(part: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
        run = _lower_part(part, examples, options, settings, device, listener)

        def call(arguments: list[Any]) -> Any:
            own_arguments = list(arguments)
            arguments.clear()
            return runner(run, own_arguments)

        call._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - AOTAutograd asks for it
        return call

    valid_settings = {name: value for name, value in (settings | _SETTINGS).items() if _is_setting(name)}
    with _silence(), _disable_current_modes(), _without_caches(), _passes_as_for_gpu():
        function: Callable[..., Any] = inductor.compile_fx(
            graph, inputs, inner_compile=inner, config_patches=valid_settings
        )
    return function


def _is_setting(name: str) -> bool:
    """Return whether this version of PyTorch has the setting."""
    config: Any = __import__("torch._inductor.config", fromlist=["config"])
    return name in config.get_config_copy()


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the compiler's warnings on the way: the program did nothing to cause them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_caches() -> Iterator[None]:
    """A cache would hand out what was made without us."""
    functorch: Any = __import__("torch._functorch.config", fromlist=["config"])
    with functorch.patch({"enable_autograd_cache": False}):
        yield


@contextmanager
def _passes_as_for_gpu() -> Iterator[None]:
    """Let passes that are meant for a GPU alone take the CPU, where the graph is traced, for one: a product of one
    batch becomes `mm`.
    """
    passes: Any = __import__("torch._inductor.fx_passes.joint_graph", fromlist=["get_gpu_type"])
    with mock.patch.object(passes, "get_gpu_type", create=True, return_value="cpu"):
        yield


def _lower_part(
    part: torch.fx.GraphModule,
    examples: Sequence[Any],
    options: dict[str, Any],
    settings: dict[str, Any],
    device: Device,
    listener: Listener,
) -> Run:
    inductor: Any = __import__("torch._inductor.compile_fx", fromlist=["compile_fx"])
    config: Any = __import__("torch._inductor.config", fromlist=["config"])
    cache: Any = __import__("torch._inductor.codecache", fromlist=["PyCodeCache"]).PyCodeCache
    utils: Any = __import__("torch._inductor.utils", fromlist=["copy_misaligned_inputs"])
    mode = detect_fake_mode(examples)
    gpu_graph = _on_gpu(part)
    with mode if mode is not None else _no_context():
        inputs = [_like(example) for example in examples]

    def load_by_key_path(_cls: Any, key: str, path: str, *_: Any, **keywords: Any) -> Any:
        return wrapper.load(key, path, keywords.get("attrs"), listener)

    valid_settings = {name: value for name, value in (settings | _SETTINGS).items() if _is_setting(name)}
    with ExitStack() as stack:
        stack.enter_context(_silence())
        stack.enter_context(target.as_only_gpu(device))
        stack.enter_context(target.convolution_layouts())
        stack.enter_context(_seeds_looked_up())
        stack.enter_context(mock.patch.object(torch.Tensor, "copy_", _copied_to, create=True))
        stack.enter_context(mock.patch.object(torch.Tensor, "contiguous", _contiguous, create=True))
        stack.enter_context(
            mock.patch.object(inductor, "fake_tensor_prop", _propagation_to_gpu(inductor.fake_tensor_prop))
        )
        stack.enter_context(mock.patch.object(cache, "load_by_key_path", classmethod(load_by_key_path)))
        stack.enter_context(_named_modules())
        stack.enter_context(choices.unmeasured(device.sms, listener.remark))
        stack.enter_context(config.patch(valid_settings))
        code = inductor.compile_fx_inner(gpu_graph, inputs, **options)

    def run(arguments: list[Any]) -> Any:
        with (
            _silence(),
            mock.patch.object(torch.cuda, "_DeviceGuard", _Guard),
            mock.patch.object(torch.cuda, "set_device", _set_device),
            mock.patch.object(utils, "copy_misaligned_inputs", _copy_misaligned_inputs),
            target.convolution_layouts(),
        ):
            return code.current_callable(arguments) if hasattr(code, "current_callable") else code(arguments)

    return run


_make_contiguous: Any = torch._C.TensorBase.contiguous  # noqa: SLF001 - the method of all tensors


def _contiguous(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """Return contiguous memory, of fake tensors on the GPU without asking for a driver."""
    if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
        if tensor.is_contiguous(memory_format=memory_format):
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=memory_format)
    contiguous: torch.Tensor = _make_contiguous(tensor, memory_format=memory_format)
    return contiguous


_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - the method of all tensors


def _copied_to(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy, except for fake tensors on the GPU: they have no contents, and PyTorch asks for a driver."""
    if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
        return tensor
    copied: torch.Tensor = _copy(tensor, source, non_blocking)
    return copied


@contextmanager
def _seeds_looked_up() -> Iterator[None]:
    """Let a seed be taken from a fake tensor on the GPU: PyTorch's own way indexes it, which asks for a driver."""
    __import__("torch._inductor.inductor_prims")
    operator = torch.ops.prims.inductor_lookup_seed.default

    def looked_up(seeds: torch.Tensor, _index: int) -> torch.Tensor:
        return torch.empty((), dtype=seeds.dtype, device=seeds.device)

    with mock.patch.object(operator, "prim_meta_impl", looked_up):
        yield


def _propagation_to_gpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives nodes their tensors on the GPU: those that they had on the CPU, moved.

    To compute them again, as ``original`` does, takes a driver for some operators.
    """

    def propagate(part: torch.fx.GraphModule, examples: Sequence[Any], *rest: Any, **options: Any) -> Any:
        mode = detect_fake_mode(examples)
        if mode is None or any("val" not in n.meta for n in part.graph.nodes if n.op not in ("output", "get_attr")):
            return original(part, examples, *rest, **options)
        flats: dict[int, torch.Tensor] = {}

        def moved(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
                return value
            storage = value.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - a storage's identity
            if key not in flats:
                flats[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=GPU)
            flat = flats[key] if value.dtype is torch.uint8 else flats[key].view(value.dtype)
            return flat.as_strided(value.shape, value.stride(), value.storage_offset())

        with mode, torch.no_grad():
            placeholders = iter(examples)
            for node in part.graph.nodes:
                if node.op == "placeholder":
                    node.meta["val"] = next(placeholders)
                elif "val" in node.meta:
                    node.meta["val"] = tree_map(moved, node.meta["val"])
        return mode

    return propagate


def _set_device(_device: Any) -> None:
    """Have one GPU only. A function, for a mock in its place costs milliseconds per call."""


def _copy_misaligned_inputs(*_: Any) -> tuple[list[Any], list[Any]]:
    """Take every input as aligned: fake tensors have no address."""
    return [], []


class _Guard:
    """Stands for the guard that makes a GPU the current one."""

    def __init__(self, _index: int) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def _no_context() -> Iterator[None]:
    yield


@contextmanager
def _named_modules() -> Iterator[None]:
    """Let the comments of generated code name the modules, as they do when the CUDA recorder listens."""
    utils: Any = __import__("torch._inductor.utils", fromlist=["get_kernel_metadata"])
    original = utils.get_kernel_metadata
    if getattr(original, "__module__", "") == tileprof_inductor.__name__:
        yield
        return
    with mock.patch.object(utils, "get_kernel_metadata", original), ExitStack() as stack:
        tileprof_inductor.remember_modules(utils)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch._inductor") and vars(module).get("get_kernel_metadata") is original:
                stack.enter_context(mock.patch.object(module, "get_kernel_metadata", utils.get_kernel_metadata))
        yield


def _like(value: Any) -> Any:
    """Return a fake tensor on the GPU with the layout of one on the CPU; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


def _on_gpu(part: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy of the graph in which everything that named the CPU names the GPU."""
    gpu_graph = copy.deepcopy(part)

    def device(value: Any) -> Any:
        return GPU if isinstance(value, torch.device) and value.type == "cpu" else value

    for node in gpu_graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, device)
    gpu_graph.recompile()
    return gpu_graph

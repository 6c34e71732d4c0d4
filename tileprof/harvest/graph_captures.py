"""What calls would launch, without a launch.

Calls are captured into a CUDA graph that never runs. Its nodes are the launches: names, grids and resources of exactly
what a call would launch, whatever PyTorch and its libraries decide on the way (workspaces, layout copies, fall-backs).
Capturing takes time of the host alone, so several processes do it at once.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_RELAXED, _CAPTURING = 2, 1
_KERNEL, _MEMCPY, _MEMSET = 0, 1, 2
_STATIC_SHARED, _REGISTERS = 1, 4
_CLUSTER_SIZES: Final = (11, 12, 13)
"""Function attributes: the cluster that a kernel was compiled for, 0 where the launch tells it."""
_CLUSTER: Final = 4
"""The launch attribute of a node."""
_MOST_EDGES: Final = 16
_NAMES: Final = {_MEMCPY: "memcpy", _MEMSET: "memset"}


class _KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint), ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class _Attribute(ctypes.Union):
    """``CUlaunchAttributeValue``."""

    _fields_ = (("cluster", ctypes.c_uint * 3), ("bytes", ctypes.c_char * 64))


class Launch:
    """A node of a graph: a kernel's name and grid; memsets and copies have a grid of zeros."""

    __slots__ = ("block", "cluster", "grid", "name", "resources")

    def __init__(
        self,
        name: str,
        grid: tuple[int, int, int],
        resources: tuple[int, int, int],
        block: tuple[int, int, int] = (0, 0, 0),
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        self.name = name
        self.grid = grid
        self.resources = resources
        """Registers, threads, bytes of shared memory."""
        self.block = block
        self.cluster = cluster


class Captures(ABC):
    """Captures calls on a stream of its own, and reads their launches; a subclass says how a case is called.

    It calls several cases once, before anything is captured, on `_stream`: handles and workspaces are made then.
    """

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - heavy; loads the driver, and makes the context

        self._torch = torch
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream = torch.cuda.Stream()
        self._raw = ctypes.c_void_p(self._stream.cuda_stream)
        self._functions: dict[int, tuple[str, int, int, tuple[int, int, int]]] = {}

    @abstractmethod
    def _call(self, case: Any) -> None:
        """Call PyTorch as a case says, on the stream that is current."""

    def launches(self, cases: Sequence[Any]) -> list[list[Launch] | None]:
        """Return the launches of each case in stream order; None where the call failed."""
        launches: list[list[Launch] | None] = []
        while len(launches) < len(cases):
            launches += self._captured(cases[len(launches) :])
        return launches

    def _captured(self, cases: Sequence[Any]) -> list[list[Launch] | None]:
        """Return the launches of the first cases, up to the first that fails, or of all."""
        leaves: list[tuple[int, ...]] = []
        failed = False
        with self._torch.cuda.stream(self._stream):
            self._check(self._driver.cuStreamBeginCapture_v2(self._raw, _RELAXED))
            for case in cases:
                try:
                    self._call(case)
                except RuntimeError:
                    failed = True
                    break
                leaves.append(self._leaves())
        graph = ctypes.c_void_p()
        if self._driver.cuStreamEndCapture(self._raw, ctypes.byref(graph)):  # a call spoilt the capture
            if len(cases) == 1:
                return [None]
            half = len(cases) // 2
            return [*self.launches(cases[:half]), *self.launches(cases[half:])]
        read: set[int] = set()
        launches: list[list[Launch] | None] = [self._new(last, read) for last in leaves]
        self._check(self._driver.cuGraphDestroy(graph))
        return [*launches, None] if failed else launches

    def _leaves(self) -> tuple[int, ...]:
        """Return what the next launch would wait for: the last node, or several where streams were joined."""
        state, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        nodes, edges, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p(), ctypes.c_size_t()
        self._check(
            self._driver.cuStreamGetCaptureInfo_v3(
                self._raw, ctypes.byref(state), ctypes.byref(number), ctypes.byref(graph), ctypes.byref(nodes),
                ctypes.byref(edges), ctypes.byref(count),
            )
        )  # fmt: skip
        if state.value != _CAPTURING:
            return ()
        return tuple(node for node in nodes[: count.value] if node) if count.value else ()

    def _new(self, leaves: tuple[int, ...], read: set[int]) -> list[Launch]:
        """Return the launches up to ``leaves`` that are not ``read`` yet, each behind those that it waits for."""
        launches: list[Launch] = []
        stack = [(leaf, False) for leaf in reversed(leaves)]
        while stack:
            node, visited = stack.pop()
            if visited:
                launches.append(self._launch(ctypes.c_void_p(node)))
            elif node not in read:
                read.add(node)
                stack.append((node, True))
                stack += [(before, False) for before in reversed(self._waits_for(node))]
        return launches

    def _waits_for(self, node: int) -> list[int]:
        count, nodes, edges = (
            ctypes.c_size_t(_MOST_EDGES),
            (ctypes.c_void_p * _MOST_EDGES)(),
            (ctypes.c_uint64 * _MOST_EDGES)(),
        )
        self._check(
            self._driver.cuGraphNodeGetDependencies_v2(ctypes.c_void_p(node), nodes, edges, ctypes.byref(count))
        )
        return [before for before in nodes[: count.value] if before]

    def _launch(self, node: ctypes.c_void_p) -> Launch:
        kind = ctypes.c_int()
        self._check(self._driver.cuGraphNodeGetType(node, ctypes.byref(kind)))
        if kind.value != _KERNEL:
            return Launch(_NAMES.get(kind.value, f"node of type {kind.value}"), (0, 0, 0), (0, 0, 0))
        own = _KernelNode()
        self._check(self._driver.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(own)))
        name, registers, shared, cluster = self._function(own)
        x, y, z = own.block
        launch = Launch(name, tuple(own.grid), (registers, x * y * z, shared + own.shared_bytes), (x, y, z), cluster)
        if not max(cluster):
            value = _Attribute()
            self._check(self._driver.cuGraphKernelNodeGetAttribute(node, _CLUSTER, ctypes.byref(value)))
            x, y, z = (max(1, size) for size in value.cluster)
            launch.cluster = x, y, z
        return launch

    def _function(self, own: _KernelNode) -> tuple[str, int, int, tuple[int, int, int]]:
        """Return name, registers, static shared memory, and the cluster that the kernel was compiled for, or zeros."""
        handle = own.function or own.kernel
        if handle not in self._functions:
            function = ctypes.c_void_p(own.function)
            if not own.function:
                self._check(self._driver.cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(own.kernel)))
            name, value = ctypes.c_char_p(), ctypes.c_int()
            self._check(self._driver.cuFuncGetName(ctypes.byref(name), function))
            values: list[int] = []
            for attribute in (_REGISTERS, _STATIC_SHARED, *_CLUSTER_SIZES):
                self._check(self._driver.cuFuncGetAttribute(ctypes.byref(value), attribute, function))
                values.append(value.value)
            registers, shared, x, y, z = values
            self._functions[handle] = ((name.value or b"").decode(), registers, shared, (x, y, z))
        return self._functions[handle]

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"the CUDA driver returned {status}")

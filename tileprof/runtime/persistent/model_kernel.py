"""Kernels that compute a whole decoder in one launch: sizes that are compiled in, and what their launches share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import torch

from tileprof.errors import UserError
from tileprof.runtime.persistent.driver import Arguments
from tileprof.runtime.persistent.kernel_source import KernelSource
from tileprof.runtime.persistent.source import SHARED_BYTES

ABSENT: Final = -1
"""A word that has not been stored: ABSENT of absent.cuh."""

_STATE_WORDS: Final = 32
_GAVE_UP, _RECORD = 2, 8  # of State of model.cuh


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Options of a kernel's compilation beside its sizes.

    ``delay_ns``: for tests, blocks sleep up to so long before they store what others wait for. ``timeout_ns``: a wait
    that lasts longer writes a record and gives up. ``profile``: `ModelLauncher.clocks` holds the times of the last
    launch. ``in_flight``: slots of the ring of weights that are filled at a time, None for the kernel's own choice.
    """

    delay_ns: int = 0
    timeout_ns: int = 1_000_000_000
    profile: bool = False
    in_flight: int | None = None


DEFAULT_OPTIONS: Final = LaunchOptions()


@dataclass(frozen=True, slots=True)
class ModelShape(ABC):
    """Sizes of a decoder like LLaMA's: RMS norms, rotary embedding, grouped heads, a gated MLP.

    ``epsilon`` is that of all norms, ``scale`` that of the scores.
    """

    dtype: Literal["float16", "bfloat16"]
    batch: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    epsilon: float
    scale: float

    @property
    def qkv(self) -> int:
        """Rows of the product that gives queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def query(self) -> int:
        """Columns of all heads of queries."""
        return self.heads * self.head_dim

    @abstractmethod
    def check(self) -> None:
        """Raise `UserError` where the kernel does not support the sizes."""

    @abstractmethod
    def header(self, blocks: int, options: LaunchOptions = DEFAULT_OPTIONS) -> str:
        """Return the text of config.h, for a launch of ``blocks``."""

    def config(
        self, blocks: int, options: LaunchOptions, sizes: Mapping[str, int], flags: Mapping[str, bool]
    ) -> list[str]:
        """Return the lines of config.h for a launch of ``blocks``; ``sizes`` and ``flags``: what one kernel adds."""
        common = {
            "BLOCKS": blocks,
            "LAYERS": self.layers,
            "HIDDEN": self.hidden,
            "INTERMEDIATE": self.intermediate,
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "VOCABULARY": self.vocabulary,
        }
        return [
            f"#define BFLOAT16 {int(self.dtype == 'bfloat16')}",
            *(f"constexpr int {name} = {value};" for name, value in {**common, **sizes}.items()),
            *(
                f"constexpr bool {name} = {str(on).lower()};"
                for name, on in {**flags, "PROFILE": options.profile}.items()
            ),
            f"constexpr float EPSILON = {self.epsilon!r}f, SCALE = {self.scale!r}f;",
            f"constexpr unsigned SHARED_BYTES = {SHARED_BYTES}, DELAY_NS = {options.delay_ns};",
            f"constexpr unsigned long long TIMEOUT_NS = {options.timeout_ns}ull;",
        ]


Shape = TypeVar("Shape", bound=ModelShape)


def refuse_beyond(limits: Mapping[str, bool], what: str) -> None:
    """Raise `UserError` with the first sentence whose limit does not hold. ``what`` has what the sentences say."""
    for sentence, holds in limits.items():
        if not holds:
            raise UserError(f"{what} has {sentence}")


class ModelLauncher(ABC, Generic[Shape]):
    """A decoder's kernel, compiled, with memory of its own: launches of one follow each other on one stream.

    ``blocks``: how many, one per SM of the device by default. Raises `UserError` where the kernel cannot be made.
    """

    kernel: ClassVar[KernelSource]
    threads: ClassVar[int]
    stages: ClassVar[Sequence[str]]
    """Stages in the order of Stage of common.cuh."""
    layer_roles: ClassVar[Sequence[str]]
    """Tensors of a layer, in the order of Layer of common.cuh."""
    model_roles: ClassVar[Sequence[str]]
    """Tensors of the model, in the order of Parameters of common.cuh."""

    def __init__(
        self, shape: Shape, device: Any, options: LaunchOptions = DEFAULT_OPTIONS, *, blocks: int | None = None
    ) -> None:
        self.shape, self.device = shape, torch.device(device)
        shape.check()
        properties = torch.cuda.get_device_properties(self.device)
        if (properties.major, properties.minor) != (9, 0):
            raise UserError(f"{self.kernel.what}'s kernel is for sm_90, and {properties.name} is not")
        self.blocks: int = blocks or properties.multi_processor_count
        self._function = self.kernel.loaded(shape.header(self.blocks, options), self.device)
        self._allocate(profile=options.profile)

    def _allocate(self, *, profile: bool) -> None:
        """Make the memory of the launches. ``clocks``: int64 [block, layer, stage, place] of a profile."""
        self._state = torch.zeros(_STATE_WORDS, dtype=torch.int32, device=self.device)
        sizes = (self.blocks, self.shape.layers + 1, len(self.stages), 4)
        self.clocks = torch.zeros(sizes if profile else (1,), dtype=torch.int64, device=self.device)
        self._arguments = Arguments(len(self.layer_roles) * self.shape.layers + len(self.model_roles) + 6)

    def _start(
        self, layers: Sequence[Mapping[str, Any]], model: Mapping[str, Any], rest: Sequence[Any], *numbers: int
    ) -> None:
        """Launch on the current stream; ``rest``: tensors after those of the model. missing ones are null."""
        tensors = [layer.get(role) for layer in layers for role in self.layer_roles]
        tensors += [*(model.get(role) for role in self.model_roles), *rest, self._state, self.clocks]
        words = [*(0 if tensor is None else tensor.data_ptr() for tensor in tensors), *numbers]
        self._arguments.words[: len(words)] = words
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(self.blocks, self.threads, stream, self._arguments, programmatic=False, cooperative=True)

    def check(self) -> None:
        """Synchronise; raise `RuntimeError` that says which wait gave up, after which launches are right again."""
        state = self._state.tolist()
        if not state[_GAVE_UP]:
            return
        self._forget()
        self._state.zero_()
        stage, layer, block, warp, word, launch = state[_RECORD : _RECORD + 6]
        raise RuntimeError(
            f"{self.kernel.what} gave up a wait: stage {self.stages[stage]} of layer {layer}, block {block}, "
            f"warp {warp} waited for {self._awaited(word)} in launch {launch}"
        )

    @abstractmethod
    def _forget(self) -> None:
        """Make the memory between stages what it is before the first launch."""

    @abstractmethod
    def _awaited(self, place: int) -> str:
        """Return the words for what a wait's record names."""


def holder(counts: Mapping[str, int], place: int) -> tuple[int, str]:
    """Return which of several names a place belongs to, and its number there; ``counts``: places in their order."""
    for name, count in counts.items():
        if place < count:
            return place, name
        place -= count
    return place, "nothing"

"""The loads of a launch through one tensor map, and the bytes that they read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileprof.arrays import I64
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.tensor_maps import im2col, tensormap
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads through one map: tiles, coordinates ``[loads, 5]``, when they were first made, and im2col's offsets."""

    map: TensorMap
    tile: I64
    coordinates: I64
    first: I64
    offsets: I64
    decodable: bool = True
    """They are in a mode that is decoded; otherwise each counts as the whole tensor."""
    identity: int = 0
    """The map's address, or below 0 a name of its contents if they may have changed."""

    def boxes(self, of: TensorMap | None = None) -> Strided:
        """Return what they read; or the same coordinates of another tensor, with this one's boxes."""
        map_ = self.map
        if of is not None:
            map_ = replace(map_, base=of.base, strides=of.strides)
        if not self.decodable:
            load_boxes = tensormap.whole(map_, len(self.tile))
        elif map_.im2col:
            load_boxes = im2col.boxes(map_, self.coordinates, self.offsets)
        else:
            load_boxes = tensormap.boxes(map_, self.coordinates)
        load = load_boxes.load
        return Strided(
            self.tile[load],
            load_boxes.address,
            load_boxes.length,
            load_boxes.count,
            load_boxes.stride,
            self.first[load],
        )

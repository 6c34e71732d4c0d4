"""From addresses to footprints: runs of bytes, boxes, and the buffers that they lie in."""

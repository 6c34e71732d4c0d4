"""Modules that nvcc compiles, and their sections."""

import struct
import subprocess

from tileprof.record.cuda.installation import locate


def compiled(folder, name, text, *options):
    """Compile CUDA; return the module's path."""
    source, cubin = folder / f"{name}.cu", folder / f"{name}.cubin"
    source.write_text(text)
    subprocess.run([locate.nvcc(), *options, "-cubin", "-o", cubin, source], check=True, capture_output=True)
    return cubin


def headers(image):
    """Return the place of each section's header, and of its content and how long that is, by name."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, number, names = struct.unpack_from("<HHH", image, 58)
    rows = [(table + n * size, *struct.unpack_from("<IIQQQQ", image, table + n * size)) for n in range(number)]
    return {image[rows[names][5] + r[1] :].partition(b"\0")[0].decode(): (r[0], r[5], r[6]) for r in rows}


def section(image, name):
    """Return the content of a section."""
    _, place, size = headers(image)[name]
    return image[place : place + size]

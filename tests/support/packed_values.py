"""Unpacks packed columns in Python, as the page does in the browser."""

import base64
import json
import re
import zlib

import numpy as np


def unpacked(packed):
    data, code = base64.b64decode(packed["data"]), np.dtype("<" + packed["type"])
    is_plain = len(data) == packed["n"] * code.itemsize
    values = np.frombuffer(data if is_plain else zlib.decompress(data), code)
    assert len(values) == packed["n"]
    return np.cumsum(values.astype(np.float64)) if packed["delta"] else values.astype(np.float64)


def embedded(html):
    """Return the data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])

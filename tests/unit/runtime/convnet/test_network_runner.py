"""Runners of convolutional networks hold weights once, however many streams and captures there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.runtime.networks import image, parameters, small
from tileprof.runtime.convnet import runner as running
from tileprof.runtime.convnet.runner import NetworkRunner


class Launcher:
    """Keeps its operands, and launches nothing."""

    def __init__(self, *_: Any) -> None:
        self.results: list[Any] = []
        self.weights: list[Any] = []

    def bind(self, results: list[Any], weights: list[Any]) -> None:
        self.results, self.weights = results, weights

    def launch(self, x: Any, out: Any) -> None:
        """Does nothing."""


@pytest.mark.parametrize("first", ["runner", "twin"])
def test_a_twin_copies_no_weights_again_whichever_is_called_first(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Gpu", (), {"multi_processor_count": 8})())
    monkeypatch.setattr(running, "Launcher", Launcher)
    network = small(1, "float16")
    result = NetworkRunner(network, torch.device("cpu"), network.layers[-1].shape)
    pair = result, result.twin()  # before any call, as the runner of a first capture is made
    inputs = image(1, "float16"), *parameters("float16")
    for each in pair if first == "runner" else reversed(pair):
        each(*inputs)
    bound = [each._launcher for each in pair]
    weights = [[w.weights.data_ptr() for w in launcher.weights if w is not None] for launcher in bound]
    results = [{r.data_ptr() for r in launcher.results if r is not None} for launcher in bound]
    assert weights[0] == weights[1] != []
    assert not results[0] & results[1]

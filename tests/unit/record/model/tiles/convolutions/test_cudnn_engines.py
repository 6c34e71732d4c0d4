"""Calls as cuDNN gets them, and how its answers are read; a library that keeps descriptors stands for cuDNN."""

import pytest

from tileprof.record.model.tiles.convolutions import cudnn_engines

OPERATIONS = {10: (704, 703, 705), 12: (710, 709, 711), 11: (716, 715, 717)}
"""Positions of x, w and y in the operations."""


class Library:
    """Keeps attributes of descriptors; heuristics return ``engines``, each a number, knobs and notes."""

    def __init__(self, engines, version=91900):
        self.engines = engines
        self.version = version
        self.kinds = []
        self.values = []
        self.alive = 0
        self.graph = None

    def cudnnGetVersion(self):  # noqa: N802 - cuDNN's name
        return self.version

    def cudnnBackendCreateDescriptor(self, kind, pointer):  # noqa: N802
        self.kinds.append(kind)
        self.values.append({})
        pointer._obj.value = len(self.kinds)
        self.alive += 1
        return 0

    def cudnnBackendDestroyDescriptor(self, pointer):  # noqa: N802
        self.alive -= 1
        return 0

    def cudnnBackendSetAttribute(self, pointer, attribute, kind, count, array):  # noqa: N802
        self.values[pointer.value - 1][attribute] = list(array)
        return 0

    def cudnnBackendFinalize(self, pointer):  # noqa: N802
        if self.kinds[pointer.value - 1] == 15:
            self.graph = self.values[pointer.value - 1][801][0]
        return 0

    def cudnnBackendGetAttribute(self, pointer, attribute, kind, asked, count, array):  # noqa: N802
        own = self.values[pointer.value - 1]
        if attribute == 202:
            answers = self.engines[own[200][0]]
            for handle, answer in zip(array, answers, strict=False):
                self.values[handle - 1]["answer"] = answer
            count._obj.value = len(answers)
        elif attribute == 300:
            self.values[array[0] - 1]["answer"] = own["answer"]
            count._obj.value = 1
        elif attribute == 302:
            for handle, knob in zip(array, own["answer"][1], strict=False):
                self.values[handle - 1]["answer"] = knob
            count._obj.value = len(own["answer"][1])
        elif attribute == 1303:
            array[: len(own["answer"][2])] = own["answer"][2]
            count._obj.value = len(own["answer"][2])
        else:
            array[0] = own["answer"][{1301: 0, 600: 0, 601: 1}[attribute]]
            count._obj.value = 1
        return 0

    def operation(self):
        """Return the query: the operation, and sizes and strides of x, w and y."""
        places = OPERATIONS[self.kinds[self.graph - 1]]
        tensors = [self.values[self.values[self.graph - 1][place][0] - 1] for place in places]
        return self.kinds[self.graph - 1], [(one[902], one[903]) for one in tensors]


FIRST, SECOND = (62, [(2, 5), (13, 1)], [0]), (45, [(2, 4)], [])


def ask(monkeypatch, key, engines=None, about=None):
    library = Library(engines or {0: [FIRST, SECOND], 2: []})
    monkeypatch.setattr(cudnn_engines, "_library", lambda: library)
    cudnn_engines._cudnn.cache_clear()
    answer = cudnn_engines.engine(key, about or {"cudnn": 91900, "device": "{}"})
    cudnn_engines._cudnn.cache_clear()
    return answer, library


def key(what=0, dtype=2, layout=0, transposed=0, groups=1, size=(1, 9, 9)):
    return (
        what, dtype, layout, 2, transposed, groups, 3, 8, 16, *size, 1, 3, 3, 1, 2, 2, 0, 1, 1, 1, 1, 1, 0, 0, 0
    )  # fmt: skip


def test_an_engine_is_its_number_and_its_knobs(monkeypatch):
    answer, library = ask(monkeypatch, key())
    assert answer == "62:2=5,13=1"
    assert library.operation()[0] == 10
    del answer
    assert library.alive == 0


@pytest.mark.parametrize(("what", "operation"), [(0, 10), (1, 12), (2, 11)])
def test_each_pass_is_an_operation_on_the_same_tensors(monkeypatch, what, operation):
    _, library = ask(monkeypatch, key(what))
    assert library.operation() == (
        operation,
        [
            ([3, 8, 9, 9], [648, 81, 9, 1]),
            ([16, 8, 3, 3], [72, 9, 3, 1]),
            ([3, 16, 5, 5], [400, 25, 5, 1]),
        ],
    )


@pytest.mark.parametrize(("what", "operation"), [(0, 12), (1, 10), (2, 11)])
def test_a_transposed_convolution_is_the_gradient_of_another_one(monkeypatch, what, operation):
    _, library = ask(monkeypatch, key(what, transposed=1))
    kind, (x, w, y) = library.operation()
    assert (kind, x[0], w[0], y[0]) == (operation, [3, 16, 17, 17], [8, 16, 3, 3], [3, 8, 9, 9])


def test_channels_last_and_groups_show_in_strides_and_weights(monkeypatch):
    _, library = ask(monkeypatch, key(layout=1, groups=4))
    _, (x, w, y) = library.operation()
    assert x == ([3, 8, 9, 9], [648, 1, 72, 8])
    assert w == ([16, 2, 3, 3], [18, 1, 6, 2])
    assert y == ([3, 16, 5, 5], [400, 1, 80, 16])


def test_three_dimensions_are_passed_as_three(monkeypatch):
    of = (0, 2, 0, 3, 0, 1, 3, 8, 16, 4, 9, 9, 3, 3, 3, 1, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0)
    _, library = ask(monkeypatch, of)
    assert library.operation()[1][0][0] == [3, 8, 4, 9, 9]


def test_fp32_takes_the_first_engine_without_tensor_cores(monkeypatch):
    engines = {0: [FIRST, (22, [], [1]), SECOND], 2: []}
    assert ask(monkeypatch, key(dtype=1), engines)[0] == "45:2=4"
    assert ask(monkeypatch, key(dtype=0), engines)[0] == "62:2=5,13=1"


def test_where_heuristics_name_none_the_fallback_is_asked(monkeypatch):
    assert ask(monkeypatch, key(), {0: [], 2: [SECOND]})[0] == "45:2=4"
    assert ask(monkeypatch, key(), {0: [], 2: []})[0] == ""


def test_another_version_or_a_table_without_a_device_gives_none(monkeypatch):
    assert ask(monkeypatch, key(), about={"cudnn": 91900})[0] == ""
    assert ask(monkeypatch, key(), about={"cudnn": 92000, "device": "{}"})[0] == ""
    assert ask(monkeypatch, key(), about={"cudnn": 91902, "device": "{}"})[0] == "62:2=5,13=1"


def test_what_cudnn_refuses_gives_none(monkeypatch):
    monkeypatch.setattr(Library, "cudnnBackendFinalize", lambda *_: 3000)
    assert ask(monkeypatch, key())[0] == ""


def test_strings_of_a_device_end_with_a_zero(monkeypatch):
    _, library = ask(monkeypatch, key(), about={"cudnn": 91900, "device": "ab"})
    device = library.kinds.index(38)
    assert bytes(library.values[device][2702]) == b"ab\0"

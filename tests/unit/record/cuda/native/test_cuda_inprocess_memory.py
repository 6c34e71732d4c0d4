"""What the code inside recorded programs tells of the allocator and of graphs, with stand-ins for PyTorch."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from tileprof.record.cuda import recorded_run


@pytest.fixture
def modules(monkeypatch):
    """Provide the modules that run inside programs."""
    monkeypatch.syspath_prepend(recorded_run.INPROCESS)
    import tileprof_allocator
    import tileprof_torch

    return SimpleNamespace(allocator=tileprof_allocator, torch=tileprof_torch)


class Memory:
    """An allocator with two blocks, one of them in use; its history has the events while it was recorded."""

    def __init__(self, refuses=""):
        self.refuses, self.history, self.calls, self.callbacks = refuses, None, [], []

    def _record_memory_history(
        self, *, enabled, context=None, stacks=None, max_entries=None, global_record_annotations=False
    ):
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.history = [] if enabled else None
        self.calls.append(enabled)
        owner = "all" if global_record_annotations else threading.get_ident()
        self.callbacks.append(owner) if enabled else self.callbacks.remove(owner)

    def happen(self, action, address, size):
        if self.history is not None:
            self.history.append({"action": action, "addr": address, "size": size, "time_us": int(time.time() * 1e6)})

    def _snapshot(self):
        blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "inactive"}]
        return {"segments": [{"address": 4096, "blocks": blocks}], "device_traces": [self.history or []]}


class OlderMemory(Memory):
    """An allocator of an older PyTorch, which knows no callbacks of all threads and never removes one."""

    def _record_memory_history(self, *, enabled, context=None, stacks=None, max_entries=None):
        self.calls.append(enabled)


def history(modules, tmp_path, memory):
    messages = []
    cuda = SimpleNamespace(memory=memory, _lazy_call=lambda action: action())
    return modules.allocator.History(SimpleNamespace(cuda=cuda), str(tmp_path), messages.append), messages


def test_each_region_begins_with_what_is_allocated_and_nothing_is_kept_between(modules, tmp_path):
    memory = Memory()
    history_json, message = history(modules, tmp_path, memory)
    for address in (100, 200):
        memory.happen("alloc", 1, 1)
        history_json.region(active=True)
        memory.happen("alloc", address, 10)
        memory.happen("free_requested", address, 10)
        history_json.region(active=False)
    history_json.write()
    rows = json.loads((tmp_path / "allocator.json").read_text())
    live = ["live", [[4096, 512]], 0]
    assert [row[:3] for row in rows] == [live, ["alloc", 100, 10], live, ["alloc", 200, 10]]
    assert message == []


@pytest.mark.parametrize("kind", [Memory, OlderMemory])
def test_a_region_that_ends_in_another_thread_leaves_no_callback_in_the_first(modules, tmp_path, kind):
    """PyTorch looks for a callback of one thread in that thread, warns if there is none, and leaves it."""
    memory = kind()
    rows, message = history(modules, tmp_path, memory)
    for _ in range(2):
        rows.region(active=True)
        thread = threading.Thread(target=rows.region, kwargs={"active": False})
        thread.start()
        thread.join()
    assert memory.calls == ["all", None] * 2
    assert memory.callbacks == []
    assert message == []


def test_a_history_that_is_kept_to_the_end_is_written_and_not_ended(modules, tmp_path):
    memory = Memory()
    rows, _ = history(modules, tmp_path, memory)
    rows.from_the_start()
    memory.happen("alloc", 100, 10)
    rows.write()
    assert [row[0] for row in json.loads((tmp_path / "allocator.json").read_text())] == ["live", "alloc"]
    assert memory.calls == ["all"]


def test_an_allocator_without_a_history_is_reported_once_and_ends_nothing(modules, tmp_path):
    rows, message = history(modules, tmp_path, Memory("cudaMallocAsync does not yet support recordHistory"))
    rows.from_the_start()
    rows.region(active=True)
    rows.write()
    assert len(message) == 1
    assert "cudaMallocAsync does not yet support" in message[0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_that_is_made_outside_of_regions_is_looked_at(modules, fails):
    lookups = []

    class Graph:
        def capture_begin(self):
            lookups.append("begin")
            if fails:
                raise RuntimeError

        def capture_end(self):
            lookups.append("end")

    hooks = object.__new__(modules.torch._Hooks)
    hooks.looking = hooks.for_a_graph = False
    hooks.torch = SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Graph))

    def region(active):
        hooks.looking, hooks.for_a_graph = active, False
        lookups.append(active)

    hooks.region = region
    hooks.say = lambda **event: lookups.append(event["e"])
    hooks.follow_graphs(SimpleNamespace(region=lookups.append))
    if fails:
        with pytest.raises(RuntimeError):
            Graph().capture_begin()
        assert lookups == [True, True, "capturing", "begin", False, False]
        return
    Graph().capture_begin()
    Graph().capture_end()
    assert lookups == [True, True, "capturing", "begin", "end", False, False]
    lookups.clear()
    hooks.looking = True  # inside a region nothing changes
    Graph().capture_begin()
    Graph().capture_end()
    assert lookups == ["capturing", "begin", "end"]

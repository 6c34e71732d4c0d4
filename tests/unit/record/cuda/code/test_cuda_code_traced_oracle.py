"""What launches touch by their code, compared with random programs whose threads are run one by one."""

import random
import struct

import pytest

from tests.unit.record.cuda.code.random_code import POINTER, code_of, program, run_thread
from tileprof.record.cuda.code import traced
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.code.traced import trace
from tileprof.record.cuda.code.traces import Launch, placed
from tileprof.trace import READ, WRITE

BLOCK, GRID = 3, 2
BEGIN = 0x210


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    """Give programs up that do not end."""
    monkeypatch.setattr(traced, "MOST_WORK", 2000)


def _launch(words, pointer):
    parameters = struct.pack("<6I", *words[:2], pointer & 0xFFFFFFFF, pointer >> 32, *words[2:])
    bank = struct.pack("<6I", BLOCK, 1, 1, GRID, 1, 1).ljust(BEGIN, b"\0") + parameters
    return Launch((GRID, 1, 1), (BLOCK, 1, 1), (1, 1, 1), bank, BEGIN, frozenset({POINTER}))


def _bank(launch):
    return {BEGIN + 4 * n: word for n, (word,) in enumerate(struct.iter_unpack("<I", launch.bank[BEGIN:]))}


def _bytes_of(found, launch):
    """Return (mode, block, address) of each byte that a launch is said to touch."""
    out = set()
    for mode, runs in placed(found, launch).runs.items():
        for tile, start, end in zip(runs.tile.tolist(), runs.start.tolist(), runs.end.tolist(), strict=True):
            out |= {(mode, tile, address & 0xFFFFFFFFFFFFFFFF) for address in range(start, end)}
    return out


def _bytes_touched(code, launch, memory):
    """Return the same of a run; None where a thread does not end."""
    out = set()
    for block in range(GRID):
        for thread in range(BLOCK):
            touched = run_thread(code, _bank(launch), thread, block, 1000 * memory + 10 * block + thread)
            if touched is None:
                return None
            for at, address in touched:
                mode = READ if code[at].name == "LDG" else WRITE
                out |= {(mode, block, address + n & 0xFFFFFFFFFFFFFFFF) for n in range(4)}
    return out


def _refuted(seed):
    """Return whether a random program is followed, and whether runs show that it was followed wrongly."""
    rng = random.Random(seed)
    code = code_of(program(rng, pointers=True))
    words = [rng.choice([0, 1, 5, 12]) for _ in range(4)]
    pointer = 0x7F01_2345_6700 | rng.choice([0, 4, 0x84])
    found = trace(Kernel(code), _launch(words, pointer))
    if isinstance(found, str):
        return False, False
    for memory in range(3):
        launch = _launch(words, pointer + memory * 0x1_0F00_0500_0000)
        touched = _bytes_touched(code, launch, memory)
        if touched is not None and touched != _bytes_of(found, launch):
            return True, True
    return True, False


def test_random_programs_touch_what_was_found_whatever_memory_and_pointers_are():
    followed = 0
    for seed in range(600):
        is_so, refuted = _refuted(seed)
        assert not refuted, seed
        followed += is_so
    assert 60 < followed < 300


def _mutants():
    """Planted faults: where each is, its name there, and what stands in its place."""
    run = traced._Run

    def forgets_nothing(self, group, part, unknown):
        join, _ = self.kernel.join(group.at) or (group.at + 1, ())
        group.at = join

    def known_conditions(self, group, conditions, condition=run._condition):
        return condition(self, group, conditions)[0], False

    def known_addresses(self, group, part, holds, unknown, touch=run._touch):
        touch(self, group, part, holds, False)

    def written_always(self, group, name, result, holds, unknown, write=run._write):
        write(self, group, name, result, True, False)

    return {
        "what ways wrote that depend on memory": (run, "_skip", forgets_nothing),
        "conditions from memory": (run, "_condition", known_conditions),
        "accesses under conditions from memory": (run, "_touch", known_addresses),
        "partial writes": (run, "_write", written_always),
    }


@pytest.mark.parametrize("name", _mutants())
def test_planted_faults_are_caught(name, monkeypatch):
    where, attribute, fault = _mutants()[name]
    monkeypatch.setattr(where, attribute, fault)

    def is_caught(seed):
        try:
            return _refuted(seed)[1]
        except Exception:  # noqa: BLE001 - a fault may also break the run
            return False

    assert any(is_caught(seed) for seed in range(1500))

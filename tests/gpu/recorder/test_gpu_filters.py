"""Bloom filters that patches fill in kernels whose accesses are known by construction."""

import pytest

from tileprof.analysis.simulate.filters.inserted import inserted_report
from tileprof.record.cuda.installation import gpu, selftest
from tileprof.record.filter_settings import FilterSettings
from tileprof.trace import load


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return selftest.program(tmp_path_factory.mktemp("selftest"), gpu.gpus()[0].architecture)


@pytest.mark.parametrize("how", [FilterSettings(4096, 2, 64), FilterSettings(256, 3, 512)])
def test_filters_hold_what_every_instruction_class_touches_and_miss_no_dependency(record, program, how):
    result = record(program, passes=("accesses", "filters", "blocks"), filters=how)
    assert result.code == 0
    answers = inserted_report(load(result.path)).answers
    assert answers.missed == answers.lacking == 0
    assert 0 < answers.full < answers.filters
    assert answers.answered == answers.dependent + answers.false


def test_filters_find_no_room_and_then_answer_yes_to_everything(record, program):
    result = record(program, passes=("accesses",), filters=FilterSettings(1 << 20, 2, 64), filter_bytes=1 << 16)
    answers = inserted_report(load(result.path)).answers
    assert answers.full == answers.filters
    assert answers.missed == 0

"""The doctor's words."""

import argparse
import json

import pytest

from tileprof import record
from tileprof.cli import doctor as verb
from tileprof.errors import UserError
from tileprof.record import cuda
from tileprof.record.cuda import doctor, gpu


@pytest.mark.parametrize(("needed", "code"), [(True, 1), (False, 0)])
def test_the_doctor_fails_only_for_what_recording_needs(monkeypatch, capsys, needed, code):
    found = [
        doctor.Check("driver", ok=True, seen="13.0"),
        doctor.Check("CUPTI", ok=False, seen="Type: pip", needed=needed),
    ]
    monkeypatch.setattr(doctor, "checks", lambda: found)
    assert verb.run(argparse.Namespace(json=False)) == code
    out = capsys.readouterr().out
    assert ("FAIL" if needed else "lost") + "  CUPTI   Type: pip" in out
    assert verb.run(argparse.Namespace(json=True)) == code
    assert json.loads(capsys.readouterr().out)["able"] == (code == 0)


def test_a_machine_without_a_driver_records_models(monkeypatch):
    def no_driver():
        raise UserError("no driver")

    monkeypatch.setattr(gpu, "driver", no_driver)
    assert not cuda.works_here()
    assert record.automatic() == "model"

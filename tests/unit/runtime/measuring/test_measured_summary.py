"""The tables in docs/chain-times.md are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.gpu.measuring.chains.chain_summary import by_chain, gain, main, markdown

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "tests/gpu/results/runtime.json"


def row(name: str, us: float, **more: object) -> dict[str, object]:
    return {"chain": "a chain", "row": name, "us": us, "roof_us": 10.0, "over_roof": us / 10, "correct": True, **more}


def test_the_page_holds_what_the_results_say(capsys) -> None:
    main([str(RESULTS)])
    output = capsys.readouterr().out
    assert output in (ROOT / "docs/chain-times.md").read_text(encoding="utf-8")
    assert all(name in output for name in by_chain(json.loads(RESULTS.read_text())["rows"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot read"), ("{", "holds no rows"), ("[]", "holds no rows"), ('{"a": 1}', "holds no rows")],
)
def test_a_file_without_rows_is_refused_in_one_sentence(tmp_path, capsys, text, message) -> None:
    if text is not None:
        (tmp_path / "rows.json").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "rows.json")])
    assert message in capsys.readouterr().err


def test_a_gain_is_against_the_same_kernels_in_stream_order() -> None:
    persistent = [row("persistent-stages", 20.0), row("persistent", 15.0), row("PyTorch in a graph", 30.0)]
    triton = [row("graph", 20.0), row("cusync", 22.0)]
    assert gain(by_chain(persistent)["a chain"]) == pytest.approx(0.25)
    assert gain(by_chain(triton)["a chain"]) == pytest.approx(-0.1)
    assert gain(by_chain(triton[:1])["a chain"]) is None


def test_losses_wrong_rows_and_missing_rows_are_shown() -> None:
    rows = [
        row("graph", 20.0),
        row("pdl", 19.0, correct=False),
        row("cusync", 22.0),
        row("unsynchronised", 9.0, correct=False),
    ]
    (line,) = [text for text in markdown({"rows": rows}).splitlines() if text.startswith("| a chain")]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "a chain", "10.0", "", "20.0", "19.0 (wrong)", "22.0", "9.0", "-10.0%", "", "", "2.20",
    ]  # fmt: skip


def test_a_prediction_that_auto_does_not_follow_is_marked() -> None:
    rows = [row("persistent-stages", 20.0), row("persistent", 19.0, predicted_gain=-0.01)]
    assert "| -1.0% * |" in markdown({"rows": rows})


def test_a_chain_with_rows_of_both_kernels_is_in_both_tables_beside_torch_compile() -> None:
    ours = [row("persistent-stages", 20.0), row("persistent", 15.0)]
    triton = [row("graph", 30.0), row("cusync", 24.0, predicted_gain=0.15)]
    torch = [row("PyTorch in a graph", 18.0), row("torch.compile max-autotune", 12.0)]
    message = markdown({"rows": [*torch, *ours, *triton]})
    assert "### a chain, the persistent kernel" in message
    assert "### a chain, Triton's kernels" in message
    lines = [text for text in message.splitlines() if text.startswith("| a chain")]
    assert [line.split("|")[3:6] for line in lines] == [[" 18.0 ", " 12.0 ", " 20.0 "], [" 18.0 ", " 12.0 ", " 30.0 "]]
    assert "+15.0%" in lines[1]
    two = [{**r, "chain": name} for r in [*torch, *ours] for name in ("a chain, 1", "a chain, 2")]
    assert "2 against torch.compile: 0.800x" in markdown({"rows": two})


def test_a_row_that_did_not_compile_has_the_reason() -> None:
    late = {
        "chain": "a chain",
        "row": "torch.compile max-autotune",
        "roof_us": 10.0,
        "correct": True,
        "said": "not compiled in 9 s",
    }
    message = markdown({"rows": [row("persistent-stages", 20.0), row("persistent", 15.0), late]})
    assert "|  | not compiled in 9 s | 20.0 |" in message

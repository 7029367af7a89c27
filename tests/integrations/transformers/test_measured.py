"""Times of transformers' models: the page says what results/gpu has, and a run adds its rows to those of others."""

import json
from pathlib import Path

from benchmarks import transformers_models as measured

ROOT = Path(__file__).parents[3]
NAMES = {
    "qwen3_5": "Qwen3.5 (gated delta rule)",
    "kimi_linear": "Kimi Linear (Kimi delta attention)",
    "mamba2": "Mamba-2 (SSD)",
    "minimax": "MiniMax (lightning attention)",
    "xlstm": "xLSTM (mLSTM)",
}


def cell(row):
    if row is None or row["milliseconds"] is None:
        return "" if row is None else "out of memory"
    return f"{row['milliseconds']:.1f} ms, {row['gibibytes']:.1f} GiB" + (" \\*" if row["why"] else "")


def test_the_page_has_the_measured_times():
    kept = json.loads((ROOT / "results/gpu/transformers_models.json").read_text())["rows"]
    rows = {(r["model"], r["length"], r["path"]): r for r in kept}
    page = (ROOT / "docs/transformers.md").read_text()
    assert list(NAMES) == list(measured.models(1024))
    for model, name in NAMES.items():
        for steps in (4096, 32768):
            cells = (cell(rows.get((model, steps, path))) for path in measured.PATHS)
            assert f"| {name} | {steps} | {' | '.join(cells)} |" in page


def test_a_row_takes_the_place_of_its_own_alone(tmp_path):
    out = tmp_path / "rows.json"
    first = [measured.Row(m, 4096, p, 1.0, None) for m, p in (("mamba2", "torch"), ("qwen3_5", "chunkform"))]
    for row in [
        *first,
        measured.Row("mamba2", 4096, "torch", 2.0, None),
        measured.Row("mamba2", 4096, "chunkform", 3.0, None),
    ]:
        measured.add(row, out)
    found = [(r["model"], r["path"], r["milliseconds"]) for r in json.loads(out.read_text())["rows"]]
    assert found == [("qwen3_5", "chunkform", 1.0), ("mamba2", "chunkform", 3.0), ("mamba2", "torch", 2.0)]

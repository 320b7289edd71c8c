"""scripts/agreement runs one trace through live and sim and says how far they are apart."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_agreement_compares_one_trace(site):
    rows = [
        {"timestamp": 100 * i, "input_length": 1600, "output_length": 8,
         "hash_ids": [i // 4, 100 + i // 2, 200 + i, 300 + i]}
        for i in range(12)
    ]  # fmt: skip
    site.file("trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [ROOT / "scripts" / "agreement", "--no-setup", "--requests", "12", "--rate", "20",
         # Relative to the caller's folder, wherever the script lies.
         "--trace", "trace.jsonl", "--json", "out.json"],
        cwd=site.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    # 1 and 3: a dozen requests on a busy machine prove nothing, and the script says so.
    assert done.returncode in (0, 1, 3), done.stderr[-3000:]
    out = json.loads((pathlib.Path(site.folder) / "out.json").read_text())
    assert out["live"]["requests"] == out["sim"]["requests"] == 12
    assert out["live"]["errors"] == 0
    assert out["sim"]["token_hit_rate"] > 0.2
    assert 0 < out["processors"]["busy"] <= 1 and out["processors"]["count"] == os.cpu_count()
    assert out["void"] == (out["processors"]["busy"] > 0.7) == (done.returncode == 3)
    for words in ("hit rate", "TTFT mean s", "processors, busy for"):
        assert words in done.stdout

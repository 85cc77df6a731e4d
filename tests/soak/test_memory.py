"""Large checkpoints pass through in pieces: little memory beyond the shards that stay, in or out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HALF_GIB = 2**29


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of anonymous memory")
def test_loading_and_writing_hold_one_tensor_at_a_time(tmp_path):
    if shutil.disk_usage(tmp_path).free < 5 * 10**9:
        pytest.skip("needs 5 GB of disk")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    command = [sys.executable, str(HERE / "measure.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found, indent=1))
    shutil.rmtree(tmp_path / "model")
    shutil.rmtree(tmp_path / "again")
    limit = 2 * found["largest_tensor"] + HALF_GIB
    assert found["devices"] == 8 and found["file_bytes"] > 1.5e9
    assert found["load_over_resident"] < limit
    assert found["export_over_start"] < limit
    assert found["export_kept"] < HALF_GIB / 8

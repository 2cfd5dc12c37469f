"""What vLLM's own processes leave behind: nothing, however the evaluation that started them ends. `make test-vllm` runs these."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from test_vllm import CACHE_BYTES, plain_folder


@pytest.fixture(scope="module")
def where(tmp_path_factory: Any) -> Path:
    return Path(tmp_path_factory.mktemp("models"))


def test_vllms_processes_end_with_a_killed_evaluation(where):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from loopwise.models import load
from loopwise.serving import VllmHost
if __name__ == "__main__":
    host = VllmHost(cache_bytes={CACHE_BYTES})
    host.on(load({str(plain_folder("llama", where))!r}).model, max_tokens=64, max_rows=2)
    children = [one for one in os.listdir("/proc") if one.isdigit() and descends(one, os.getpid())]
    print(*children, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    code = code.replace("import os, signal, sys", _DESCENDS)
    script = where / "killed.py"
    script.write_text(code)
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=900
    )
    assert done.returncode == -signal.SIGKILL
    children = done.stdout.split("\n")[-2].split()
    assert children, "vLLM ran in processes of its own"
    deadline = time.monotonic() + 60
    while any(is_running(one) for one in children) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(is_running(one) for one in children)


_DESCENDS = """import os, signal, sys
def parent(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1]
    except OSError:
        return "0"
def descends(pid, ancestor):
    while pid not in ("0", "1"):
        pid = parent(pid)
        if pid == str(ancestor):
            return True
    return False
"""


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_two_models_in_turn_and_an_error_leave_no_process_and_no_file(where):
    folder, temporary = plain_folder("llama", where), where / "temporary"
    temporary.mkdir()
    script = where / "leaves.py"
    script.write_text(_DESCENDS + _LEAVES.format(tests=str(Path(__file__).parent), folder=str(folder), cache_bytes=CACHE_BYTES))
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    during, after, files = map(json.loads, done.stdout.strip().splitlines()[-3:])
    assert len(during) == 2 and all(during) and not set(during[0]) & set(during[1]) and after == [] and files == [], done.stdout


_LEAVES = """
import json, tempfile, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from loopwise import evaluate, insert
from loopwise.models import load
from loopwise.serving import VllmHost
from test_evaluation import make_task

def children():  # without multiprocessing's own, which ends with this process
    found = [one for one in os.listdir("/proc") if one.isdigit() and descends(one, os.getpid())]
    return [one for one in found if b"resource_tracker" not in Path(f"/proc/{{one}}/cmdline").read_bytes()]

def fail(item, text):
    during.append(children())
    raise OSError("the disk is full")

if __name__ == "__main__":
    model, tokenizer = load({folder!r})
    during = []
    try:
        with VllmHost(cache_bytes={cache_bytes}) as host:
            evaluate(model, tokenizer, make_task(), engine="vllm", host=host)
            during.append(children())
            evaluate(insert(model, "1:4 x3"), tokenizer, make_task(grader=fail), engine="vllm", host=host)
    except OSError:
        pass
    time.sleep(1)
    print(json.dumps(during))
    print(json.dumps(children()))
    print(json.dumps([one for one in os.listdir(tempfile.gettempdir()) if not one.startswith("torchinductor")]))  # torch's own cache
"""

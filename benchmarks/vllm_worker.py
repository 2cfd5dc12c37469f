"""vLLM in processes and an environment of its own, asked by lines of JSON; stopped while it is not asked, for it spins as it waits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loopwise.loops import Loop
from loopwise.models import insert_on_disk


class WorkerError(RuntimeError):
    """vLLM cannot do what was asked, or its process ended."""


WORKER = """
import json, sys
from importlib.metadata import entry_points

def tell(value):
    print("LOOPWISE " + json.dumps(value), flush=True)

head = json.loads(sys.stdin.readline())
if head["looped"] and not any(one.name == "loopwise" for one in entry_points(group="vllm.general_plugins")):
    tell({"error": "loopwise is not installed in vLLM's environment, so its plugin for loops is missing"})
    sys.exit()
from vllm import LLM, SamplingParams
llm = LLM(
    model=head["folder"],
    dtype=head["dtype"],
    max_num_seqs=head["batch_size"],
    max_model_len=head["positions"],
    kv_cache_memory_bytes=head["cache_bytes"],  # else it takes a share of the whole machine's memory, which others may have
)
tell("ready")
for line in sys.stdin:
    asked = json.loads(line)
    how = SamplingParams(temperature=0.0, max_tokens=asked["num_tokens"], ignore_eos=not asked["ending"])
    out = llm.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], how, use_tqdm=False)
    tell([len(one.outputs[0].token_ids) for one in out])
"""
"""What runs in vLLM's environment: a line of JSON for each request and each answer."""


def start(python: str, folder: Path, loops: Sequence[Loop], head: dict[str, Any]) -> subprocess.Popen[str]:
    """Load a model with loops, served by this package's plugin from a folder with a sidecar, or without.

    Args:
        head: dtype, batch_size, positions and cache_bytes, as the worker reads them.

    Raises:
        WorkerError: it does not load.
    """
    served, made = folder, None
    if loops:
        made = tempfile.mkdtemp(prefix="loopwise-engines-")
        served = Path(made) / "looped"
        insert_on_disk(str(folder), loops, served)
    # A group of its own in this session: should this process be killed, the system wakes the stopped ones up to end.
    worker = subprocess.Popen([python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        ask(worker, {**head, "folder": str(served), "looped": bool(loops)})
    except BaseException:
        end(worker)
        raise
    finally:
        if made is not None:
            shutil.rmtree(made)  # it is read
    return worker


def ask(worker: subprocess.Popen[str], request: dict[str, Any]) -> Any:
    """The answer to one request.

    Raises:
        WorkerError: the worker's own reason, or its end.
    """
    assert worker.stdin is not None and worker.stdout is not None
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGCONT)
    try:
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        while line := worker.stdout.readline():  # vLLM prints, too
            if line.startswith("LOOPWISE "):
                answer = json.loads(line.removeprefix("LOOPWISE "))
                if isinstance(answer, dict):
                    raise WorkerError(answer["error"])
                return answer
    except BrokenPipeError:
        pass
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGSTOP)
    raise WorkerError("vLLM's process ended; its own messages say why")


def end(worker: subprocess.Popen[str]) -> None:
    """Kill it with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()

"""Candidates measured by their accuracy on a task's training problems, never on its test items (no-free-loop, A.4)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ..cost import cost_of, read_shape
from ..data import Document, hash_documents, overlapping, without_wording
from ..decoding import DecodingRule
from ..evaluation import ParityError, evaluate
from ..loops import format_loops
from ..models import Loaded, insert, remove
from ..placement import Candidate, Known, PlacementError, Ranks, Scored, Tell
from ..records import CandidateResult, Status
from ..tasks import Item, Task


def check_trains(task: Task) -> None:
    """Refuse a task that has test items only.

    Raises:
        PlacementError: it has no training problems.
    """
    if "train" not in task.splits:
        raise PlacementError(f"{task.name} has no training problems, and test items choose no loop; use gsm8k, ladder or a text objective")


def training_documents(task: Task, num_items: int, data: Path | None) -> tuple[tuple[Item, ...], tuple[Document, ...]]:
    """Training problems that share no text with a test item, and their text as documents, for the study's hashes.

    Raises:
        PlacementError: the task has no training problems, or every one of them is like a test item.
        TaskError: as `Task.load`.
    """
    check_trains(task)
    items = task.load(data, num_items, "train")
    prompts = without_wording([item.prompt for item in items])
    test = task.load(data)
    hashes = hash_documents(
        Document(name=item.name, domain=task.name, text=text)
        for item, text in zip(test, without_wording([item.prompt for item in test]), strict=True)
    ).hashes
    shared = set(overlapping(((item.name, text) for item, text in zip(items, prompts, strict=True)), hashes, whole=task.from_templates))
    kept = tuple(item for item in items if item.name not in shared)
    if not kept:
        raise PlacementError(f"all {len(items)} training problems of {task.name} share text with test items; ask for more with --items")
    documents = [
        Document(name=f"{task.name}:{item.name}{part}", domain=f"accuracy:{task.name}", text=text)
        for item in kept
        for part, text in (("", item.prompt), ("/solution", str(item.extra.get("solution", ""))))
        if text
    ]
    return kept, tuple(documents)


class AccuracyMeasurer:
    """Puts each candidate in, lets it answer the training problems greedily, and takes it out again."""

    def __init__(self, loaded: Loaded, task: Task, items: Sequence[Item], out: Path, ranks: Ranks) -> None:
        self.loaded, self.task, self.items, self.out, self.ranks = loaded, task, tuple(items), out, ranks
        self.measure = f"accuracy:{task.name}"
        self.shape = read_shape(loaded.model.config.to_dict())

    def __call__(self, candidates: Sequence[Candidate], share: float, known: Known, tell: Tell) -> None:
        missing = [candidate for candidate in candidates if known(format_loops(candidate)) is None]
        for first in range(0, len(missing), self.ranks.size):
            mine = first + self.ranks.rank
            found = [self.answered(missing[mine], share)] if mine < len(missing) else []
            tell([scored for part in self.ranks.gather(found) for scored in part])

    def replay(self, candidates: Sequence[Candidate], known: Known) -> None:
        """Nothing is carried from one step to the next."""

    def answered(self, candidate: Candidate, share: float = 1.0) -> Scored:
        """The accuracy of one candidate on the first ``share`` of the problems; answers are kept, and resumed after a kill.

        A loop that ruins the model is a result, and so is one whose cached decoding is not exact: neither ends the search.
        """
        began = time.monotonic()
        status, reason, values = self._answer(candidate, share)
        result = CandidateResult(
            loops=format_loops(candidate),
            layer_pass_ratio=cost_of(self.shape, candidate).layer_pass_ratio,
            status=status,
            measure=self.measure,
            share=share,
            values=values,
            reason=reason,
            seconds=time.monotonic() - began,
        )
        return Scored(result=result)

    def _answer(self, candidate: Candidate, share: float) -> tuple[Status, str | None, dict[str, float]]:
        items = self.items[: max(1, round(share * len(self.items)))]
        text = format_loops(candidate)
        folder = self.out / "answers" / self.task.name.replace(":", "-") / hashlib.sha256(f"{text} {share}".encode()).hexdigest()[:16]
        insert(self.loaded.model, candidate)
        try:
            if not self._is_finite(items[0].prompt):
                return "ruined", "its logits are not finite", {}
            run = evaluate(
                self.loaded.model,
                self.loaded.tokenizer,
                self.task,
                out=folder,
                items=items,
                rule=DecodingRule(budget_forcing=True, reserve_tokens=max(1, self.task.reserve_tokens)),
                arm=text or "unlooped",
            )
        except ParityError as error:
            return "failed", str(error), {}
        finally:
            remove(self.loaded.model)
        accuracy = sum(record.correct for record in run.records) / len(run.records)
        return "scored", None, {"accuracy": accuracy, "num_items": float(len(run.records))}

    @torch.inference_mode()
    def _is_finite(self, prompt: str) -> bool:
        model = self.loaded.model
        ids = self.loaded.tokenizer(prompt, return_tensors="pt").input_ids.to(next(model.parameters()).device)
        return bool(model(input_ids=ids, use_cache=False).logits.isfinite().all())

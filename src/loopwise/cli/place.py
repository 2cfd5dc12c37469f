"""``loopwise place``: where a loop could go in a trained model."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .console import Progress, UsageError, print_json, save_config
from .show import find_config
from .studies import placement_summary, ranked

if TYPE_CHECKING:
    from ..recipes.placement import PlaceSettings


@dataclass(frozen=True)
class Command:
    """Search for the place of a loop by perplexity at each candidate's own fitted temperature; the same command goes on after a kill.

    Example: loopwise place smollm2 --text reasoning=traces.jsonl code=code.jsonl --max-cost 1.25 --out studies/smollm2
    Before anything runs: loopwise place smollm2 --count
    Several processes: torchrun --nproc-per-node 2 --no-python loopwise place smollm2 --out studies/smollm2
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder, or smollm2."""
    out: Path | None = None
    """The study's folder; several searches of one model and text may share it."""
    text: tuple[str, ...] = ()
    """Sources: FILE.jsonl, FILE.txt, DOMAIN=FILE, hub:ORG/NAME[:SPLIT[:COLUMN]]; default: worked arithmetic and Python's own texts."""
    objective: str = "ppl_t"
    """ppl_t, ppl, kl, depth_rule, or accuracy:TASK on the task's training problems."""
    algorithm: tuple[str, ...] = ("grid",)
    """One or more of grid, random, local, evolution, annealing, tpe, gp, greedy, halving."""
    evaluations: float | None = None
    """Stop after so many evaluations; default: all of a grid, greedy growth to its end."""
    seed: tuple[int, ...] = (0,)
    """Of the search; several run it several times."""
    widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    """Layers of a window."""
    passes: tuple[int, ...] = (2, 3, 4)
    """Passes of a window."""
    betas: tuple[float, ...] = (0.25, 0.5, 0.75)
    """Anchors of the damped operator."""
    operators: tuple[str, ...] = ("damped",)
    """damped, repeat, or both."""
    structures: tuple[str, ...] = ("window",)
    """window, windows (several), window+mlp (an MLP loop in it), mlp (MLP loops only)."""
    max_windows: int = 2
    """Most windows of one candidate."""
    mlp_passes: tuple[int, ...] = (2, 3)
    """Passes of an MLP loop in a window."""
    centre: tuple[float, float] | None = None
    """Only windows whose centre lies in this band of the depth; default: everywhere, 0.45 0.60 for kl."""
    max_cost: float | None = None
    """Most layer passes, as a multiple of the plain model's, e.g. 1.25."""
    count: bool = False
    """Say how many candidates there are and about how long they take, and stop."""
    race: bool = True
    """Drop candidates as soon as the text read so far shows that they lose (objective ppl_t only)."""
    race_error: float = 0.05
    """Probability of dropping one that the whole text would put within one standard error of the leader."""
    race_tolerance: float | None = None
    """Seek the best alone, to so many nats, e.g. 0.002: also what cannot beat the leader by more is dropped, however near it is."""
    fit_tokens: int = 1024
    """Tokens that temperatures are fitted on."""
    score_tokens: int = 3072
    """Tokens that candidates are scored on."""
    window_tokens: int = 256
    """Tokens of one window of text."""
    stride: int = 1
    """Score every so many tokens."""
    fit_stride: int = 4
    """Fit temperatures on every so many tokens."""
    text_seed: int = 0
    """Of the choice of documents."""
    memory_gb: float = 2.0
    """Memory for kept hidden states and candidates at work, beside the model."""
    items: int = 64
    """Training problems, for accuracy:TASK."""
    data: Path | None = None
    """A task's local files, for accuracy:TASK."""
    name: str | None = None
    """The search's name in the study; default: algorithm, objective and seed."""
    top: int = 5
    """How many of the best to print."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.top < 1:
            raise UsageError(f"--top {self.top}: give at least 1 candidate to print")
        settings = self._settings()
        if self.count:
            self._count(settings)
        elif self.out is None:
            raise UsageError("give --out, the study's folder (or --count, to see how long it takes)")
        else:
            self._search(settings, self.out)

    def _settings(self) -> PlaceSettings:
        from ..recipes.placement import PlaceSettings, SpaceSettings, TextSettings

        text = ("fit_tokens", "score_tokens", "window_tokens", "stride", "fit_stride")
        space = ("widths", "passes", "betas", "operators", "structures", "max_windows", "mlp_passes", "centre", "max_cost")
        search = (
            "objective",
            "evaluations",
            "race",
            "race_error",
            "race_tolerance",
            "memory_gb",
            "items",
            "data",
            "name",
            "dtype",
            "device",
        )
        return PlaceSettings(
            text=TextSettings(sources=self.text, seed=self.text_seed, **{name: getattr(self, name) for name in text}),
            space=SpaceSettings(**{name: getattr(self, name) for name in space}),
            algorithms=self.algorithm,
            seeds=self.seed,
            **{name: getattr(self, name) for name in search},
        )

    def _count(self, settings: PlaceSettings) -> None:
        from ..recipes.estimate import estimate

        found = estimate(find_config(self.model), settings)
        if self.json:
            print_json(found.to_json())
        else:
            print(found.words())

    def _search(self, settings: PlaceSettings, out: Path) -> None:
        from ..recipes.placement import place
        from ..report import render_study

        progress = Progress(quiet=self.json)
        study = place(self.model, out=out, settings=settings, progress=progress)
        progress.close()
        if os.environ.get("RANK", "0") != "0":  # torchrun's other processes are silent
            return
        save_config(out, "place", self)
        report = render_study(out)
        best = ranked(study, settings.objective, settings.search_names)[: self.top]
        if self.json:
            print_json({"best": [result.loops for result in best], "out": str(out), "report": str(report)})
            return
        print(placement_summary(study, settings.objective, settings.search_names, best))
        print(f"\nreport: {report}")
        if best:
            model, folder = shlex.quote(self.model), shlex.quote(str(out))
            command = f'loopwise trial {model} --loops "{best[0].loops}" --placement {folder} --task ladder --out trials/placed'
            print(f"whether a loop pays: {command}")

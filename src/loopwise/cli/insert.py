"""``loopwise insert``: a loop on disk, beside weights that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..loops import format_loops
from .console import print_json


@dataclass(frozen=True)
class Command:
    """Make a folder that anybody can load: the model's own files, byte for byte, and the loop as loop.json.

    Example: loopwise insert smollm2 --loops "12:16 x2 damped beta=0.5" --out looped
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder, or smollm2."""
    loops: str
    """The loops, e.g. "10:14 x2 damped beta=0.5"."""
    out: Path
    """The folder to make."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..models import insert_on_disk

        loops = insert_on_disk(self.model, self.loops, self.out)
        if self.json:
            print_json({"out": str(self.out), "loops": format_loops(loops)})
        else:
            print(
                f"{self.out}: {format_loops(loops)}\nload it with loopwise.load({str(self.out)!r}), or as the plain model with transformers"
            )

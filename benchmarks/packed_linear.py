"""Products of a decode step on a CPU: a linear layer as it is beside its weight packed for oneDNN.

    python benchmarks/packed_linear.py                              # the shapes of SmolLM2-135M, 1 to 64 rows
    python benchmarks/packed_linear.py --shapes 64x32 --rows 2 --repeats 2    # does the script work?

Medians of repeats that take turns, in microseconds. What is shown is the product alone; ``benchmarks/engines.py`` measures answers.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from loopwise.decoding.packed import packed_weights

SMOLLM2 = ["576x576", "576x192", "576x1536", "1536x576", "576x49152"]
SECONDS = 0.05
"""Of one timing; a guess: long beside the clock's steps, short beside other programs' spells."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=SMOLLM2, help="inputs x outputs of linear layers")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--between", type=int, default=1 << 28, help="bytes of other weights between two uses of one (default: 2**28)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads")
    print("inputs x outputs  rows  as it is  packed  ratio")
    for shape in options.shapes:
        num_in, num_out = map(int, shape.split("x"))
        copies = 1 + options.between // (4 * num_in * num_out)
        linears = nn.ModuleList(nn.Linear(num_in, num_out, bias=False) for _ in range(copies))
        for rows in options.rows:
            plain, packed = compare(linears, torch.randn(rows, 1, num_in), options.repeats)
            print(f"{shape:>16}  {rows:4}  {1e6 * plain:8.0f}  {1e6 * packed:6.0f}  {plain / packed:5.2f}", flush=True)


def compare(linears: nn.ModuleList, inputs: Tensor, repeats: int) -> tuple[float, float]:
    """Seconds of one product, as it is and packed, with weights that come from memory as in a decode step: layer after layer."""
    plain, packed = [], []
    with torch.inference_mode():
        for _ in range(repeats):
            plain.append(seconds_of(linears, inputs))
            with packed_weights(linears, len(inputs)):
                packed.append(seconds_of(linears, inputs))
    return statistics.median(plain), statistics.median(packed)


def seconds_of(linears: nn.ModuleList, inputs: Tensor) -> float:
    linears[-1](inputs)
    count, began = 0, time.perf_counter()
    while (gone := time.perf_counter() - began) < SECONDS:
        for linear in linears:
            linear(inputs)
        count += len(linears)
    return gone / count


if __name__ == "__main__":
    main()

"""How far vLLM and the own engine are apart on a looped model: the same tokens, and log-probabilities of greedy ones.

Answers are decoded by both engines with budget forcing and the repetition stop; then vLLM's greedy tokens are scored by the looped model
itself, and by the plain one, which has to be far from them. In vLLM's own environment (docs/engines-vllm.md):

    python benchmarks/vllm_gap.py                                               # SmolLM2-135M-Instruct in fp32
    python benchmarks/vllm_gap.py --model FOLDER --loops "10:14 x2" --dtype bf16
"""

from __future__ import annotations

import argparse
import os

PROMPTS = ("What is 2 + 3?", "Name three colours.", "What is 7 times 8? Think step by step.", "Write one sentence about the sea.")


def main() -> None:
    options = _options()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from loopwise.decoding import DecodingRule
    from loopwise.decoding import generate as own
    from loopwise.models import load
    from loopwise.serving import generate, load_engine, measure_gap

    engine = load_engine(
        options.model,
        loops=options.loops,
        dtype=options.dtype,
        max_tokens=512,
        max_rows=8,
        cache_bytes=512 << 20,
        eager=True,
    )
    model, tokenizer = load(options.model, loops=options.loops, dtype=options.dtype)
    rule = DecodingRule(budget_forcing=True, reserve_tokens=12, repetition_stop=True)
    theirs = generate(engine, tokenizer, PROMPTS, budget_tokens=40, rule=rule, answer_opener="\nAnswer: ")
    ours = own(model, tokenizer, PROMPTS, budget_tokens=40, rule=rule, answer_opener="\nAnswer: ")
    same = sum((one.token_ids, one.stop_reason) == (other.token_ids, other.stop_reason) for one, other in zip(theirs, ours, strict=True))
    print(f"answers with the same tokens: {same} of {len(PROMPTS)}")
    print(measure_gap(engine, model, [tokenizer(prompt)["input_ids"] for prompt in PROMPTS], new_tokens=32))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="a Hugging Face id or folder (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--loops", default="12:16 x2 damped beta=0.5", help="in the notation")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""An arm on a task: what is asked, the parity check, the header, the records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..cost import Meter
from ..decoding import DecodingRule, plan_batches, read_chat
from ..models import loops_of
from ..records import Record, Run, RunWriter, read_run, write_json
from ..serving import VllmHost, vllm_version
from ..tasks import Item, Task, permit, task_named, wall_facts
from .answering import Answering, Batching, Progress, Row
from .asking import asked_items, hash_items
from .conversations import check_conversations
from .defaults import in_task_mode, task_budget_tokens, task_rule, task_samples
from .engines import Check, EvaluationEngine, check_engine, make_ready, parity_json
from .header import model_facts, run_header
from .ranks import Ranks
from .spreading import Spread


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | str,
    *,
    out: str | Path | None = None,
    rule: DecodingRule | None = None,
    budget_tokens: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    data: str | Path | None = None,
    items: Sequence[Item] | None = None,
    batch_size: int = 16,
    fixed_rows: bool = False,
    engine: EvaluationEngine = "eager",
    host: VllmHost | None = None,
    arm: str | None = None,
    parity: Check | None = None,
    allow_code_execution: bool = False,
    ranks: Ranks | None = None,
    progress: Progress | None = None,
) -> Run:
    """Evaluate one arm on one task.

    Which prompts share a group of batches follows from the task, the tokenizer and ``batch_size`` alone, so that twins see the same
    groups; within one, the next prompt takes the place of a row that ended (not with ``fixed_rows``). A task of conversations is
    answered round by round, each of its answers within the budget. With ``out`` each answer is on
    the disk as soon as it ends, and the same call goes on after a kill: an unfinished group is decoded again as a whole, and only
    the records that are missing are added. Where none is, nothing is checked and no engine starts.

    Args:
        rule: default plain, at the task's own temperature, mostly greedy; the reserve of budget forcing is the rule's own (see
            `Task.reserve_tokens`). A task that is always asked in thinking mode turns that on.
        budget_tokens: default the task's, that for thinking mode where the rule thinks.
        samples: answers per item, default the task's own number, 1 under greedy decoding; above 1 the rule needs a temperature.
        engine: how steps run; not eager ones keep their shape, see `loopwise.decoding.Engine`. ``vllm`` answers with vLLM, which reads
            the model's files. Letters and log-likelihoods run eagerly.
        host: keeps vLLM running from call to call; without one it is started here and stopped at the end.
        items: in place of the test items that ``data`` and ``limit`` name, e.g. training problems.
        seed: the replicate: the training seed of a trained pair, and the first part of every sampling key.
        parity: a check of this very model on this task's prompts that was made before, or what makes it where an answer is missing;
            None makes it here.
        allow_code_execution: let a task that grades by it run the code that the model writes; the header says behind which walls.
        ranks: the processes that share the batches out, from `join_ranks`; each calls this alike and checks parity on its own model,
            the first one writes ``out`` and reports progress, and all return the whole run. Without them this process is alone.

    Raises:
        ParityError: cached decoding is not the model that was meant.
        RanksError: processes with different models, settings, versions or devices, or one that failed.
        RecordsError: ``out`` holds another run.
        TaskError, DecodingError: bad input, before anything runs.
    """
    task = permit(task_named(task) if isinstance(task, str) else task, allow_code_execution)
    rule = task_rule(task) if rule is None else in_task_mode(rule, task)
    budget = task_budget_tokens(task, thinking=rule.thinking) if budget_tokens is None else budget_tokens
    rule.check_budget(budget)
    samples = task_samples(task, rule) if samples is None else samples
    if samples < 1 or (samples > 1 and rule.greedy):
        raise ValueError(
            f"samples={samples} at temperature {rule.temperature:g}: greedy samples are all the same; give a temperature, or 1"
        )
    items = task.load(None if data is None else Path(data), limit) if items is None else tuple(items)
    if not items:
        raise ValueError(f"no items of {task.name} to evaluate on; give at least one")
    if task.kind == "log-likelihood":
        from .log_likelihood import LikelihoodWay, evaluate_log_likelihood, refuse_decoding  # which imports this module

        refuse_decoding(task, rule, samples, ranks)
        where = None if out is None else Path(out)
        way = LikelihoodWay(out=where, seed=seed, batch_size=batch_size, budget_tokens=budget, arm=arm, progress=progress)
        return evaluate_log_likelihood(model, tokenizer, task, items, way, parity)
    items, prompts = asked_items(model, tokenizer, task, items, rule, budget)
    plan_batches([len(prompt) for prompt in prompts], batch_size)
    spread = Spread(ranks or Ranks())
    if task.kind == "letters":
        engine = "eager"
    else:
        check_conversations(task, engine)
        check_engine(engine, model, rule, fixed_rows=fixed_rows, num_ranks=spread.ranks.size)
    header = run_header(
        model_facts(model)
        | {"chat_template": read_chat(model, tokenizer).template is not None, **task.facts}
        | ({"code_execution": wall_facts()} if task.executes_code else {}),
        arm=arm or f"{'looped' if loops_of(model) else 'unlooped'} {rule.name} {budget}",
        task=task,
        num_items=len(items),
        items_hash=hash_items(items, prompts),
        rule=rule,
        budget_tokens=budget,
        samples=samples,
        seed=seed,
        batch_size=batch_size,
        fixed_rows=fixed_rows,
        engine=engine,
        engine_versions={"vllm": vllm_version()} if engine == "vllm" else {},
        parity=None,
    )
    rows = [Row(item, prompt, sample) for item, prompt in zip(items, prompts, strict=True) for sample in range(samples)]
    there = RunWriter.look(out, header) if out is not None and spread.first else ()
    with ExitStack() as stack:
        vllm = None
        if spread.first_says(not {row.key(task, seed) for row in rows} <= {record.key for record in there}):
            if engine == "vllm" and host is None:
                host = stack.enter_context(VllmHost())
            vllm, checked = make_ready(model, task, prompts, budget, batch_size, parity, host if engine == "vllm" else None)
            header["parity"] = parity_json(checked)
        answering = Answering(model, tokenizer, task, rule, budget, seed, Batching(batch_size, fixed_rows, engine), vllm)
        spread.agree(header)
        if not spread.first:
            answering.run(rows, set(), lambda records: None, None, spread)
            return spread.whole_run()
        if out is None:
            kept: list[Record] = []
            answering.run(rows, set(), kept.extend, progress, spread)
            return spread.hand_out(Run(header, _in_order(kept), "memory"))
        with RunWriter(out, header) as writer, Meter(str(model.device)) as meter:
            answering.run(rows, {record.key for record in writer.done}, writer.append, progress, spread)
            header = writer.header
    _keep_meter(Path(out), meter, len(rows) - len(writer.done), spread.ranks.size, of_vllm=engine == "vllm")
    return spread.hand_out(Run(header, _in_order(read_run(out).records), str(out)))


def _keep_meter(out: Path, meter: Meter, num_answers: int, num_ranks: int, *, of_vllm: bool) -> None:
    """What this process took, beside the run; a run that was killed keeps the figures of the process that finished it.

    Of several processes these are the first one's, and ``num_answers`` are those of all. Of vLLM's memory nothing is known: it has
    processes of its own.
    """
    if num_answers:
        peak, memory = (None, "none") if of_vllm else (meter.peak_bytes, meter.memory)
        figures = {"seconds": meter.seconds, "peak_bytes": peak, "memory": memory, "num_answers": num_answers}
        figures |= {"ranks": num_ranks} if num_ranks > 1 else {}
        write_json(out / "meter.json", figures)


def _in_order(records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(sorted(records, key=lambda record: record.key))

"""SGLang's own scheduler over requests given as JSON: what each finds cached, and every step.

Run by `validate/test_sglang.py` with the interpreter of an installed SGLang (0.5.23 is the one this
was written for). Its event loop, radix tree and pools are real; a step gives the tokens it is told
to after the time it is told to last, on a clock of its own, without running the model.
"""

import contextlib
import heapq
import json
import logging
import os
import sys
from array import array
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs

# Tokens of the pool that is allocated; that of a case is a part of it.
MOST = 65536


def scheduler(case: dict[str, Any], model: str) -> Scheduler:
    """A scheduler of the case's kind; the model's weights are loaded and never used."""
    args = ServerArgs(
        model_path=model,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        skip_tokenizer_init=True,
        max_total_tokens=MOST,
        page_size=case["page"],
        max_running_requests=case["seats"],
        max_prefill_tokens=case["input_budget"],
        disable_overlap_schedule=not case["overlap"],
        log_level="error",
    )
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    return Scheduler(args, PortArgs.init_new(args))


class Play:
    """A run: the clock, the requests still to come, and what is written down."""

    def __init__(self, engine: Scheduler, case: dict[str, Any]) -> None:
        self.engine = engine
        self.case = case
        self.rows = case["requests"]
        count = len(self.rows)
        self.following = {row["after"]: i for i, row in enumerate(self.rows) if row["after"] >= 0}
        self.due = [(row["arrive"], i) for i, row in enumerate(self.rows) if row["after"] < 0]
        heapq.heapify(self.due)
        self.now = self.free = 0
        self.left = count
        self.hits, self.ends, self.lost = [-1] * count, [0] * count, [0] * count
        self.firsts = [0] * count
        self.steps: list[dict[str, Any]] = []
        self.until: dict[int, int] = {}

    def ingest(self, *_: Any, **__: Any) -> list[Any]:
        """What has arrived by now; where nothing is left to do the clock goes to the next one."""
        engine = self.engine
        busy = engine.last_batch or engine.running_batch.reqs or engine.waiting_queue
        if self.left == 0 and not engine.last_batch:
            engine.gracefully_exit = True
        elif not busy and not engine.chunked_req and self.due:
            self.now = max(self.now, self.due[0][0])
        while self.due and self.due[0][0] <= self.now:
            _, i = heapq.heappop(self.due)
            row = self.rows[i]
            wanted = SamplingParams(
                max_new_tokens=len(row["output"]), ignore_eos=self.case["ignore_eos"]
            )
            wanted.normalize(None)
            engine.handle_generate_request(
                TokenizedGenerateReqInput(
                    rid=str(i),
                    input_text=None,
                    input_ids=array("q", row["prompt"]),
                    input_embeds=None,
                    mm_inputs=None,
                    token_type_ids=None,
                    sampling_params=wanted,
                    return_logprob=False,
                    logprob_start_len=-1,
                    top_logprobs_num=0,
                    token_ids_logprob=None,
                    stream=False,
                )
            )
        return []

    def run(self, batch: ScheduleBatch, *_: Any, **__: Any) -> GenerationBatchResult:
        """Write the step down; it begins when the one before it is over."""
        engine = self.engine
        engine.forward_ct += 1
        batch.forward_iter = engine.forward_ct
        batch.launch_ts = 0.0
        prefills, decodes = [], []
        joined = {req.rid for req in batch.decoding_reqs or []}
        for req in batch.reqs:
            i = int(req.rid)
            if batch.forward_mode.is_decode() or req.rid in joined:
                decodes.append(i)
                continue
            new = req.extend_end - req.prefix_len
            if self.hits[i] < 0:
                self.hits[i] = req.prefix_len
            prefills.append((i, req.prefix_len, new))
        batch.input_ids = batch.prefill_input_ids_cpu = batch.mix_running_indices = None
        start = max(self.now, self.free)
        tokens = len(decodes) + sum(new for _, _, new in prefills) if prefills else 0
        self.free = start + self.case["step"] + self.case["token"] * tokens
        self.until[batch.forward_iter] = self.free
        ratio = engine.new_token_ratio_tracker.current
        self.steps.append(
            {"start": start, "prefills": prefills, "decodes": sorted(decodes), "share": ratio}
        )
        result = GenerationBatchResult(logits_output=LogitsProcessorOutput(next_token_logits=None))
        result.next_token_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
        return result

    def settle(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        """The step is over: its requests have the tokens that they were told to generate."""
        self.now = max(self.now, self.until[batch.forward_iter])
        tokens = []
        for req in batch.reqs:
            output = self.rows[int(req.rid)]["output"]
            tokens.append(output[min(len(req.output_ids), len(output) - 1)])
        result.next_token_ids = torch.tensor(tokens, dtype=torch.int64)
        had = {req.rid: (len(req.output_ids), req.finished()) for req in batch.reqs}
        Scheduler.process_batch_result(self.engine, batch, result)
        for req in batch.reqs:
            i = int(req.rid)
            count, over = had[req.rid]
            if count == 0 and len(req.output_ids) > 0:
                self.firsts[i] = self.now
            if req.finished() and not over:
                self.ends[i] = self.now
                self.left -= 1
                if i in self.following:
                    after = self.following[i]
                    heapq.heappush(self.due, (self.now + self.rows[after]["think"], after))

    def queue(self, req: Any, is_retracted: bool = False) -> None:
        self.lost[int(req.rid)] += is_retracted
        Scheduler._add_request_to_queue(self.engine, req, is_retracted)

    def answer(self) -> dict[str, Any]:
        return {
            "hits": self.hits,
            "firsts": self.firsts,
            "ends": self.ends,
            "preemptions": self.lost,
            "steps": self.steps,
        }


def play(engine: Scheduler, case: dict[str, Any]) -> dict[str, Any]:
    """Play one case on a scheduler whose cache is empty and whose pool has `tokens`."""
    pool = engine.token_to_kv_pool_allocator
    pool.size = case["tokens"]
    pool.num_pages = case["tokens"] // case["page"]
    assert engine.flush_cache()
    engine.chunked_prefill_size = case["budget"]
    engine.is_mixed_chunk = case["mixed"]
    engine.schedule_policy = case["policy"]
    engine.init_schedule_policy()
    share = engine.new_token_ratio_tracker
    first = min(share.init * case["conservativeness"], 1.0)
    share.min = first * share.min / share.init
    share.decay = (first - share.min) / 600
    share.init = share.current = first
    engine.gracefully_exit = engine._war_barrier_enabled = False
    engine.last_batch = None
    run = Play(engine, case)
    engine.ingest_requests = run.ingest
    engine.run_batch = run.run
    engine.process_batch_result = run.settle
    engine._add_request_to_queue = run.queue
    type(engine.output_streamer).stream_output = lambda *_, **__: None
    type(engine.invariant_checker)._check_all_pools = lambda *_: (False, [])
    if case["overlap"]:
        engine.event_loop_overlap()
    else:
        engine.event_loop_normal()
    return run.answer()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        engine = scheduler(cases[0], sys.argv[1])
        answers = [play(engine, case) for case in cases]
    json.dump(answers, sys.stdout)
    sys.stdout.flush()
    # Its threads and sockets have nothing more to do.
    os._exit(0)

"""vLLM's own scheduler over requests given as JSON: how many prompt tokens each finds cached.

Run by `validate/test_windows.py` with the interpreter of an installed vLLM (0.32.0 is the one this
was written for). No model runs: every step lasts as long, and gives the tokens it is told to.
"""

import heapq
import json
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

STATE = -1


def layer(window: int, block: int) -> KVCacheSpec:
    """What one layer of a group caches."""
    if window == STATE:
        return MambaSpec(
            block_size=block, shapes=((16,),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
    shape = {"block_size": block, "num_kv_heads": 1, "head_size": 16}
    if window:
        return SlidingWindowSpec(**shape, dtype=torch.float32, sliding_window=window)
    return FullAttentionSpec(**shape, dtype=torch.float32)


def scheduler(case: dict[str, Any], model: str) -> Scheduler:
    """A scheduler with one KV group for each window, 0 being full attention and `STATE` a recurrent
    state; `model` only lends its configuration."""
    settings = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=case["longest"]),
        cache_config=CacheConfig(block_size=case["block"], enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case["seats"],
            max_num_batched_tokens=case["budget"],
            max_model_len=case["longest"],
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
    )
    groups = [
        KVCacheGroupSpec([f"layer {i}"], layer(window, case["block"]))
        for i, window in enumerate(case["windows"])
    ]
    if STATE in case["windows"]:
        settings.cache_config.mamba_cache_mode = "align"
    settings.cache_config.num_gpu_blocks = case["blocks"]
    return Scheduler(
        vllm_config=settings,
        kv_cache_config=KVCacheConfig(
            num_blocks=case["blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=settings.cache_config.prefix_cache_retention_interval,
        ),
        block_size=case["block"],
        hash_block_size=case["block"],
        structured_output_manager=StructuredOutputManager(settings),
        log_stats=True,
    )


def play(case: dict[str, Any], model: str) -> dict[str, list[int]]:
    """Hit tokens, end (microseconds) and preemptions of every request, in a closed loop."""
    init_none_hash(sha256)
    hasher = get_request_block_hasher(case["block"], sha256)
    engine = scheduler(case, model)
    rows = case["requests"]
    following = {row["after"]: i for i, row in enumerate(rows) if row["after"] >= 0}
    due = [(row["arrive"], i) for i, row in enumerate(rows) if row["after"] < 0]
    heapq.heapify(due)
    made: dict[int, Request] = {}
    hits, ends = [0] * len(rows), [0] * len(rows)
    now = 0
    while due or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now = max(now, due[0][0])
        while due and due[0][0] <= now:
            _, i = heapq.heappop(due)
            wanted = SamplingParams(max_tokens=len(rows[i]["output"]), ignore_eos=True)
            made[i] = Request(str(i), rows[i]["prompt"], wanted, None, block_hasher=hasher)
            engine.add_request(made[i])
        step = engine.schedule()
        for new in step.scheduled_new_reqs:
            hits[int(new.req_id)] = new.num_computed_tokens
        names = list(step.num_scheduled_tokens)
        now += case["step"] if names else 0
        sampled = []
        for name in names:
            request = made[int(name)]
            whole = request.num_computed_tokens >= request.num_tokens
            next_token = rows[int(name)]["output"][len(request.output_token_ids) :][:1]
            sampled.append(next_token if whole else [])
        places = {name: place for place, name in enumerate(names)}
        engine.update_from_output(step, ModelRunnerOutput(names, places, sampled))
        for name in names:
            i = int(name)
            if made[i].is_finished():
                ends[i] = now
                if i in following:
                    heapq.heappush(due, (now + rows[following[i]]["think"], following[i]))
    lost = [made[i].num_preemptions for i in range(len(rows))]
    return {"hits": hits, "ends": ends, "preemptions": lost}


if __name__ == "__main__":
    json.dump([play(case, sys.argv[1]) for case in json.load(sys.stdin)], sys.stdout)

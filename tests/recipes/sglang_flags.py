"""Options that SGLang's argument parsers take, of those that recipes may write.

Printed from `ServerArgs.add_cli_args` of 0.5.10, .12, .14, .16, .18, .20, .21, .22 and .23 (wheels
of the package index, 2026-11-30); `validate/test_recipes.py` holds an installed version against it.
"""

from typing import NamedTuple

VERSIONS = (10, 12, 14, 16, 18, 20, 21, 22, 23)  # of 0.5


class Option(NamedTuple):
    """Patch versions of 0.5 whose parser takes it undeprecated, the number of values (None: one or
    more), and the words that it is limited to (empty: any)."""

    since: int = 10
    until: int = 23
    values: int | None = 1
    words: frozenset[str] = frozenset()


def one_of(words: str) -> Option:
    """An option with a choice."""
    return Option(words=frozenset(words.split()))


# Choices are those that all versions share, but for --kv-cache-dtype nvfp4 (0.5.16); algorithms are
# a choice in 0.5.10 only.
OPTIONS = {
    "--model-path": Option(),
    "--served-model-name": Option(),
    "--host": Option(),
    "--port": Option(),
    "--tp-size": Option(),
    "--pp-size": Option(),
    "--dcp-size": Option(since=16),
    "--dp-size": Option(),
    "--enable-dp-attention": Option(until=21, values=0),
    "--attn-dp-size": Option(since=22),
    "--ep-size": Option(),
    "--moe-a2a-backend": one_of("none deepep mooncake mori nixl flashinfer"),
    "--load-balance-method": one_of(
        "auto round_robin follow_bootstrap_room total_requests total_tokens"
    ),
    "--nnodes": Option(),
    "--node-rank": Option(),
    "--dist-init-addr": Option(),
    "--nccl-port": Option(),
    "--mem-fraction-static": Option(),
    "--context-length": Option(),
    "--max-running-requests": Option(),
    "--chunked-prefill-size": Option(),
    "--max-prefill-tokens": Option(),
    "--page-size": Option(),
    "--kv-cache-dtype": one_of("auto bf16 bfloat16 fp8_e4m3 fp8_e5m2 nvfp4"),
    "--mamba-ssm-dtype": one_of("float32 bfloat16 float16"),
    "--schedule-policy": one_of("fcfs lpm lof random dfs-weight priority"),
    "--enable-mixed-chunk": Option(values=0),
    "--disable-radix-cache": Option(values=0),
    "--disable-overlap-schedule": Option(values=0),
    "--cuda-graph-max-bs": Option(until=12),
    "--cuda-graph-bs": Option(until=12, values=None),
    "--cuda-graph-max-bs-decode": Option(since=14),
    "--cuda-graph-bs-decode": Option(since=14, values=None),
    "--disable-cuda-graph": Option(until=12, values=0),
    "--disable-decode-cuda-graph": Option(since=14, values=0),
    "--disable-prefill-cuda-graph": Option(since=14, values=0),
    "--disable-cuda-graph-padding": Option(values=0),
    "--enable-hierarchical-cache": Option(values=0),
    "--hicache-size": Option(),
    "--speculative-algorithm": one_of("EAGLE EAGLE3 NEXTN NGRAM STANDALONE"),
    "--speculative-num-steps": Option(),
    "--speculative-eagle-topk": Option(),
    "--speculative-num-draft-tokens": Option(),
    "--speculative-draft-model-path": Option(),
    "--speculative-ngram-max-bfs-breadth": Option(),
    "--enable-metrics": Option(values=0),
    "--disaggregation-mode": one_of("null prefill decode"),
    "--disaggregation-transfer-backend": one_of("mooncake nixl ascend fake mori"),
    "--disaggregation-bootstrap-port": Option(),
    "--num-reserved-decode-tokens": Option(),
}

# Likewise of sglang-router 0.3.2 (`RouterArgs.add_cli_args`).
POLICIES = frozenset({"random", "round_robin", "cache_aware", "power_of_two", "manual"})
ROUTER_OPTIONS = {
    "--host": Option(),
    "--port": Option(),
    "--prometheus-port": Option(),
    "--worker-startup-timeout-secs": Option(),
    "--worker-urls": Option(values=None),
    "--policy": Option(words=POLICIES),
    "--prefill-policy": Option(words=POLICIES),
    "--decode-policy": Option(words=POLICIES),
    "--pd-disaggregation": Option(values=0),
    "--prefill": Option(values=2),
    "--decode": Option(),
    "--assignment-mode": one_of("random min_load min_group"),
}

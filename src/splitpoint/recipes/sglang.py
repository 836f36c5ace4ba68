"""A deployment as `sglang.launch_server` scripts, one file per instance and node, and its router.

Flags are those of SGLang 0.5.10 to 0.5.23 and sglang-router 0.3.2; the argument parsers of nine of
these versions were printed and compared (docs/recipes.md). All that the prediction fixed is a flag,
also where it chose for the engine (`pricing.engines.sglang.limited`).
"""

from collections.abc import Sequence

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Pool
from splitpoint.inputs.engine import Engine, KvDtype
from splitpoint.inputs.gpu import GIB
from splitpoint.inputs.plan import EnginePlan
from splitpoint.inputs.routing import Routing
from splitpoint.pricing.engines.rules import Version, version_of
from splitpoint.pricing.engines.sglang import limited
from splitpoint.recipes import scripts
from splitpoint.recipes.placement import Instance, Share, place
from splitpoint.recipes.readme import Told
from splitpoint.recipes.serving import Serving
from splitpoint.search.world import rank_choice
from splitpoint.sim.world import RankChoice, Reserve
from splitpoint.units import memory

SERVER = "sglang.launch_server"
ROUTER = "sglang-router"

# Versions whose parsers were read, and the first among them that takes a spelling.
OLDEST = Version(0, 5, 10)
DECODE_GRAPHS = Version(0, 5, 14)  # --cuda-graph-*-decode for --cuda-graph-*
CONTEXT_RANKS = Version(0, 5, 16)  # --dcp-size
NVFP4 = Version(0, 5, 16)
ATTENTION_RANKS = Version(0, 5, 22)  # --attn-dp-size for --dp-size and --enable-dp-attention
SMALL_HOST_POOL = Version(0, 5, 16)  # before, host memory must be larger than the device's pool

PREFILL_TOKENS = 16384  # default of --max-prefill-tokens, which caps a larger chunk

CACHE_DTYPES: dict[KvDtype, str] = {
    "auto": "auto",
    "bf16": "bfloat16",
    "fp8": "fp8_e4m3",
    "nvfp4": "nvfp4",
}
# Which data-parallel rank of an instance serves a request, as it was predicted.
RANK_CHOICES: dict[RankChoice, str] = {
    "lot": "follow_bootstrap_room",
    "turn": "round_robin",
    "requests": "total_requests",
    "tokens": "total_tokens",
}
ALGORITHMS = {"mtp": "NEXTN", "eagle3": "EAGLE3", "draft_model": "STANDALONE", "ngram": "NGRAM"}


def policy(routing: Routing, workers: int) -> str:
    """The router's word."""
    return scripts.policy(routing, workers, session="manual")


def refusal(made: Serving) -> PlanError | None:
    """What SGLang would fail on once it is on a cluster; None if it can run the deployment."""
    deployment = made.deployment
    if ":" in made.model:
        what = f"{made.model!r}: SGLang serves no name with a colon"
        return PlanError("model", what, "a folder or a hub id without one")
    for pool in deployment.pools:
        if (refused := _engine_refusal(pool)) is not None:
            return refused
    pipelines = {pool.role: pool.topology.pp for pool in deployment.pools}
    if pipelines.get("decode", 1) not in (1, pipelines.get("prefill", 1)):
        what = f"pp {pipelines['decode']} on decode and {pipelines['prefill']} on prefill"
        return PlanError("deployment", what, "pp = 1 for decode, or the same on both sides")
    if deployment.split and len({_draft_layers(pool.engine) for pool in deployment.pools}) > 1:
        what = "prefill and decode differ in drafts, whose layers' KV is handed over too"
        return PlanError("deployment", what, "the same drafts on both sides")
    for instance in place(deployment, made.gpus_per_node):
        if (refused := _uneven(instance)) is not None:
            return refused
    return None


def _engine_refusal(pool: Pool) -> PlanError | None:
    engine, topology = pool.engine, pool.topology
    version = version_of(engine)
    if version < OLDEST:
        what = f"the recipe's flags are not those of SGLang {engine.version}"
        return PlanError("engine.version", what, "0.5.10 or later")
    if engine.kv_dtype not in CACHE_DTYPES or (engine.kv_dtype == "nvfp4" and version < NVFP4):
        what = f"SGLang {engine.version} has no {engine.kv_dtype} KV cache"
        return PlanError("engine.kv_dtype", what, ", ".join(CACHE_DTYPES))
    if engine.state_dtype not in scripts.STATE_DTYPES:
        what = f"SGLang has no {engine.state_dtype} state cache"
        return PlanError("engine.state_dtype", what, ", ".join(scripts.STATE_DTYPES))
    if topology.dcp > 1 and version < CONTEXT_RANKS:
        what = f"SGLang {engine.version} has no decode context parallelism"
        return PlanError("deployment", f"{pool}: {what}", "dcp = 1, or 0.5.16 and later")
    method = engine.draft_method if engine.drafts else None
    if method in ("eagle3", "draft_model") and not engine.draft_model:
        what = "no draft model is named, only one of the usual shape assumed"
        return PlanError("engine.draft_model", what, "its name or folder")
    if method in ("draft_model", "ngram") and topology.dp > 1:
        what = f"{pool}: SGLang drafts by {method} on no data-parallel ranks"
        return PlanError("engine.draft_method", what, "mtp or eagle3, or dp = 1")
    if engine.host_kv_gib and not engine.prefix_caching:
        what = "SGLang's host memory is a part of its prefix cache"
        return PlanError("engine.host_kv_gib", what, "0, or prefix_caching = true")
    if engine.host_kv_gib and not host_gigabytes(pool):
        what = f"{engine.host_kv_gib:g} GiB are less than a whole GB a GPU, as --hicache-size is"
        return PlanError("engine.host_kv_gib", what, "more, or 0")
    return None


def _draft_layers(engine: Engine) -> int:
    return 0 if engine.draft_method == "ngram" else engine.drafts


def _uneven(instance: Instance) -> PlanError | None:
    """SGLang cuts tp ranks and stages into equal parts by node (`entrypoints/engine.py`)."""
    nodes, topology = len(instance.shares), instance.pool.topology
    shares = {len(share.gpus) for share in instance.shares}
    whole = topology.pp % nodes == 0 or nodes % topology.pp == 0
    if nodes == 1 or (len(shares) == 1 and whole):
        return None
    what = f"{instance.pool}: its {topology.gpus} GPUs do not divide among {nodes} nodes"
    return PlanError("deployment", what, "equal parts of ranks, or of stages, a node")


def settled(made: Serving, pool: Pool) -> Engine:
    """The pool's engine with the limits that the prediction took for it."""
    return limited(pool.engine, made.hbm, pool.topology)


def _asked(made: Serving, pool: Pool) -> Engine | EnginePlan:
    """The engine table as the user wrote it: a simulated pool's has everything filled in."""
    return pool.engine if made.plan is None else made.plan.engine


def flags(made: Serving, pool: Pool) -> list[scripts.Words]:
    """The flags of one instance of the pool that do not depend on its place."""
    engine, topology = settled(made, pool), pool.topology
    words = _parallel(pool, mori=made.visible == "HIP_VISIBLE_DEVICES")
    # What SGLang counts over all attention ranks, a plan counts for each.
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    limits = {
        "--context-length": engine.max_len,
        "--max-running-requests": engine.max_seqs * topology.dp,
        "--chunked-prefill-size": engine.batched_tokens * topology.dp,
        # A kernel may ask for larger pages than the one token that is priced by default.
        "--page-size": _asked(made, pool).block_size and engine.block_size,
    }
    words.append(("--mem-fraction-static", f"{engine.utilization:g}"))
    words += [(flag, str(value)) for flag, value in limits.items() if value is not None]
    if engine.batched_tokens > PREFILL_TOKENS:
        words.append(("--max-prefill-tokens", str(engine.batched_tokens)))
    words.append(("--kv-cache-dtype", CACHE_DTYPES[engine.kv_dtype]))
    if engine.state_dtype != "auto":
        words.append(("--mamba-ssm-dtype", scripts.STATE_DTYPES[engine.state_dtype]))
    words.append(("--schedule-policy", engine.schedule_policy))
    # As the simulator, and SGLang itself: no mixed chunks with drafts.
    if engine.mixed_chunk and not engine.drafts:
        words.append(("--enable-mixed-chunk",))
    if not engine.prefix_caching:
        words.append(("--disable-radix-cache",))
    if not engine.async_scheduling:
        words.append(("--disable-overlap-schedule",))
    words += _graphs(engine)
    if engine.host_kv_gib and pool.role != "decode":
        words.append(("--enable-hierarchical-cache",))
        words.append(("--hicache-size", str(host_gigabytes(pool))))
    if engine.drafts:
        words += _drafts(engine)
    words.append(("--enable-metrics",))
    if pool.role != "mixed":
        words.append(("--disaggregation-mode", pool.role))
    if pool.role == "decode":
        words.append(("--num-reserved-decode-tokens", str(Reserve().remote)))
    return words


def _parallel(pool: Pool, *, mori: bool) -> list[scripts.Words]:
    """Degrees: SGLang's tp counts the GPUs of all attention ranks."""
    engine, topology = pool.engine, pool.topology
    ranks = topology.tp * topology.dp
    words: list[scripts.Words] = [("--tp-size", str(ranks))]
    if topology.pp > 1:
        words.append(("--pp-size", str(topology.pp)))
    if topology.dcp > 1:
        words.append(("--dcp-size", str(topology.dcp)))
    if topology.dp > 1 and version_of(engine) >= ATTENTION_RANKS:
        words.append(("--attn-dp-size", str(topology.dp)))
    elif topology.dp > 1:
        words += [("--dp-size", str(topology.dp)), ("--enable-dp-attention",)]
    if topology.ep > 1:
        words.append(("--ep-size", str(topology.ep)))
    if engine.all_to_all and topology.dp > 1 and topology.ep > 1:
        words.append(("--moe-a2a-backend", "mori" if mori else "deepep"))
    return words


def _graphs(engine: Engine) -> list[scripts.Words]:
    several = version_of(engine) >= DECODE_GRAPHS
    if not engine.graphs:
        off = ("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph")
        return [(flag,) for flag in (off if several else ("--disable-cuda-graph",))]
    suffix = "-decode" if several else ""
    words: list[scripts.Words] = [(f"--cuda-graph-max-bs{suffix}", str(engine.max_graph))]
    if engine.graph_sizes:
        sizes = (str(size) for size in sorted(engine.graph_sizes))
        words = [(f"--cuda-graph-bs{suffix}", *sizes)]
    if not engine.graph_padding:
        words.append(("--disable-cuda-graph-padding",))
    return words


def _drafts(engine: Engine) -> list[scripts.Words]:
    """One chain of drafts, as priced: SGLang counts the token that they follow with them."""
    words: list[scripts.Words] = [
        ("--speculative-algorithm", ALGORITHMS[engine.draft_method or "mtp"]),
        ("--speculative-num-draft-tokens", str(engine.drafts + 1)),
    ]
    if engine.draft_method == "ngram":
        return [*words, ("--speculative-ngram-max-bfs-breadth", "1")]
    words.append(("--speculative-num-steps", str(engine.drafts)))
    words.append(("--speculative-eagle-topk", "1"))
    if engine.draft_model is not None:
        words.append(("--speculative-draft-model-path", engine.draft_model))
    return words


def host_gigabytes(pool: Pool) -> int:
    """Whole GB of host memory of one GPU, as `--hicache-size` counts it
    (`mem_cache/pool_host/base.py`: 10^9 bytes, each rank a pool of its own)."""
    return int(pool.engine.host_kv_gib * GIB / pool.topology.rank_gpus // 10**9)


def own_reserve(made: Serving, pool: Pool) -> int:
    """Bytes of a GPU that SGLang would leave free of weights and KV by its own rule, which fixes
    `--mem-fraction-static` where nobody does (0.5.10 server_args.py, 0.5.23 memory_hook.py; the
    parts that both have)."""
    engine, topology = settled(made, pool), pool.topology
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    tokens = engine.batched_tokens * topology.dp
    if pool.role == "decode":
        tokens = engine.max_seqs * topology.dp * (1 + engine.drafts)
    graph = 0 if pool.role == "prefill" else engine.max_graph or 0
    mib = 512 + 1.5 * max(tokens, 2048) + 1024 * topology.gpus / 8 + 2 * graph
    if topology.dp > 1:
        mib += graph * topology.dp * (4.5 if graph > 300 else 3)
    if made.hbm > 60 * GIB:
        mib = max(mib, 10 * 1024)
    return round(mib * 2**20)


def instance(made: Serving, instance: Instance, share: Share, nodes: int) -> str:
    """The script that starts one node's share of an instance."""
    node = f'"$NODE_{share.node}"'
    pool = instance.pool
    words = [tuple(scripts.quote(w) for w in flag) for flag in flags(made, pool)]
    words = [("--model-path", '"$MODEL"'), ("--served-model-name", '"$SERVED_NAME"'), *words]
    if pool.topology.dp > 1:
        words.append(("--load-balance-method", RANK_CHOICES[rank_choice(pool, made.deployment)]))
    if instance.role != "mixed":
        words.append(("--disaggregation-transfer-backend", '"$TRANSFER_BACKEND"'))
    if instance.role == "prefill":
        words.append(("--disaggregation-bootstrap-port", str(instance.side_port)))
    words += _spread(instance, share)
    words += [("--host", node), ("--port", str(instance.port))]
    gpus = ",".join(str(gpu) for gpu in share.gpus)
    exports: dict[str, str] = {made.visible: scripts.quote(gpus)}
    comments = scripts.comments(instance, share, nodes, SERVER)
    return scripts.command(comments, f'"$PYTHON" -m {SERVER}', words, exports)


def _spread(instance: Instance, share: Share) -> list[scripts.Words]:
    """Where the processes of an instance find each other. Ports that SGLang would look for itself
    may be taken between the look and the use when several instances start at once."""
    nodes = len(instance.shares)
    if nodes == 1 and instance.pool.topology.dp == 1:
        return [("--nccl-port", str(instance.master_port))]
    words: list[scripts.Words] = []
    if nodes > 1:
        words.append(("--nnodes", str(nodes)))
        words.append(("--node-rank", str(instance.shares.index(share))))
    words.append(("--dist-init-addr", f'"$NODE_{instance.head}:{instance.master_port}"'))
    return words


def router(made: Serving, instances: Sequence[Instance]) -> str:
    """The script that starts sglang-router."""
    deployment = made.deployment
    entry = "prefill" if deployment.split else "mixed"
    first = policy(deployment.routing, sum(i.role == entry for i in instances))
    second = policy(deployment.decode_routing, sum(i.role == "decode" for i in instances))
    words = scripts.router_words()
    if deployment.split:
        words += [
            ("--pd-disaggregation",),
            ("--prefill-policy", first),
            ("--decode-policy", second),
        ]
        words += [
            ("--prefill", scripts.url(i), str(i.side_port)) for i in instances if i.role == entry
        ]
        words += [("--decode", scripts.url(i)) for i in instances if i.role == "decode"]
    else:
        words += [("--policy", first), ("--worker-urls", *(scripts.url(i) for i in instances))]
    if "manual" in (first, second):
        # A new session goes where the fewest requests are, as simulated.
        words.append(("--assignment-mode", "min_load"))
    program = '"$PYTHON" -m sglang_router.launch_router'
    return scripts.command(scripts.router_comments(ROUTER), program, words)


def settings(made: Serving) -> tuple[str, ...]:
    """Lines of env.sh that only SGLang needs."""
    if not made.deployment.split:
        return ()
    backend = "mooncake" if made.visible == "HIP_VISIBLE_DEVICES" else "nixl"
    return (
        "# What carries KV from prefill to decode, the same on both sides: nixl, mooncake, mori.",
        f'export TRANSFER_BACKEND="${{TRANSFER_BACKEND:-{backend}}}"',
    )


def checked(instances: Sequence[Instance]) -> Sequence[scripts.Words]:
    """What check.py must be told of SGLang."""
    ports = [("--bootstrap-port", str(i.side_port)) for i in instances if i.role == "prefill"]
    return [("--engine", "sglang"), *ports]


def told(made: Serving) -> Told:
    """What the README says of SGLang."""
    pools = made.deployment.pools
    version = pools[0].engine.version
    transfer = ", and `nixl` for the KV transfer" if made.deployment.split else ""
    return Told(
        engine=f"SGLang {version}",
        needs=f"and {ROUTER} 0.3.2 (`pip install sglang {ROUTER}`{transfer})",
        server=SERVER,
        router=ROUTER,
        session="an X-SMG-Routing-Key header",
        length="--context-length",
        lengthen="`--json-model-override-args`",
        left_open=tuple(
            flag
            for flag, values in {
                "--context-length": [pool.engine.max_len for pool in pools],
                "--page-size": [_asked(made, pool).block_size for pool in pools],
            }.items()
            if None in values
        ),
        notes=tuple(_notes(made)),
    )


def _notes(made: Serving) -> list[str]:
    deployment = made.deployment
    engines = [pool.engine for pool in deployment.pools]
    notes = []
    if any(_asked(made, pool).max_seqs is None for pool in deployment.pools):
        notes.append(
            "`--max-running-requests` is what was simulated, the largest batch with a graph; "
            "SGLang by itself lets 2,048 to 4,096 requests of a rank run."
        )
    for pool in deployment.pools:
        free, own = round((1 - pool.engine.utilization) * made.hbm), own_reserve(made, pool)
        if free < own:
            notes.append(
                f"`--mem-fraction-static {pool.engine.utilization:g}` ({pool.role}) leaves about "
                f"{memory(free)} of a GPU for activations and graphs; SGLang's own rule "
                f"leaves {memory(own)}. If it runs out of memory, lower it, and plan again "
                "with `[engine] utilization`: the KV pool shrinks by as much."
            )
    if any(engine.graphs for engine in engines):
        notes.append(
            "Prefill steps were predicted without CUDA graphs; later versions capture some, "
            "which `--disable-prefill-cuda-graph` turns off."
        )
    if any(
        p.engine.all_to_all is None and p.topology.dp > 1 < p.topology.ep for p in deployment.pools
    ):
        notes.append(
            "`--moe-a2a-backend` is the engine's default. The prediction sends tokens to their "
            "experts one by one where that moves at most half of the bytes; `[engine] all_to_all` "
            "fixes it for both."
        )
    if any(engine.host_kv_gib for engine in engines):
        notes.append(
            "`--hicache-size` is in whole GB a GPU, rounded down"
            + ("; the decode side has no prefix cache and keeps none" if deployment.split else "")
            + "."
            + (
                " This version wants it larger than the GPU's own pool."
                if any(version_of(engine) < SMALL_HOST_POOL for engine in engines)
                else ""
            )
        )
    if any(engine.flashinfer_sums is not None for engine in engines):
        notes.append("`flashinfer_sums` is vLLM's: it changes nothing here.")
    if deployment.split:
        notes += [
            "The router sends a request to both sides at once; the decode side reserves its KV "
            "first, then prefill pushes. It names prefill's bootstrap port; no request may reach "
            "an instance past the router.",
            "TRANSFER_BACKEND in env.sh: `nixl` takes what UCX finds (UCX_NET_DEVICES chooses), "
            "`mooncake` needs RDMA cards (`--disaggregation-ib-device` behind run.sh) or "
            "MC_FORCE_TCP=1.",
            "SGLang has no counterpart of vLLM's `kv_load_failure_policy`: a failed transfer "
            "ends its request with an error.",
            "From 0.5.21 on `bash run.sh --disaggregation-enable-kv-checksum` lets the decode "
            "side verify every page that it gets.",
        ]
    if any(pool.topology.dp > 1 for pool in deployment.pools):
        notes.append(
            "The router sees one address per instance; which of its data-parallel ranks serves a "
            "request is SGLang's choice (`--load-balance-method`), without regard to cached "
            "prefixes, on the prefill side at random."
        )
    return notes

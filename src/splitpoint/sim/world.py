"""What the simulator is given: pools, the link between them, and the routers, all as numbers."""

from typing import Literal

from splitpoint.inputs.routing import Role, Routing, Scores, Tree
from splitpoint.pricing.layout import Group
from splitpoint.record import Record
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.path import LinkSpec


class Reserve(Record, frozen=True, kw_only=True):
    """SGLang's scheduling of a pool, with its defaults (srt/environ.py, managers/scheduler.py,
    schedule_policy.py and disaggregation/decode.py of 0.5, 2025-26).

    `first`, `least`: share of the outputs of running requests that admission keeps free, at first
    (`init_new_token_ratio`) and after `fall_steps` decode steps. `horizon`: tokens of one output
    that count (`CLIP_MAX_NEW_TOKENS`). `retract_steps`: decode steps that a retraction makes room
    for. `remote`: tokens kept free on a decode instance for each of its requests
    (`num_reserved_decode_tokens`). `longest_first`: who finds most of its prompt in the cache goes
    first (`--schedule-policy lpm`, the default of older versions). `mixed`: decodes join the steps
    that prefill (`--enable-mixed-chunk`), but in a pipeline or with drafts. With attention of dp
    ranks both shares are 0.3 of that (`server_args.py`, `schedule_conservativeness`).
    """

    first: float = 0.7
    least: float = 0.098
    fall_steps: int = 600
    horizon: int = 4096
    retract_steps: int = 20
    remote: int = 512
    longest_first: bool = False
    mixed: bool = False


# Who names the data-parallel rank of a request: the router, or the instance: by lot (SGLang's
# prefill side, whose rank is a request's room, a random number, modulo the ranks), in turn, or by
# load. `in_flight` is vLLM's since 0.27: the requests that it has sent there and that have not
# ended, those that wait counting more while the pool is fuller than a half. `queue` is vLLM's
# before: 4 x waiting + running. `requests` and `tokens`: SGLang's total_requests and total_tokens
# (`--load-balance-method`).
RankChoice = Literal["router", "lot", "turn", "in_flight", "queue", "requests", "tokens"]


class PoolSpec(Record, frozen=True, kw_only=True):
    """`replicas` equal instances of `gpus` GPUs. Each has `dp` ranks with a KV pool of their own
    that step together; `kv_blocks` counts one rank's blocks (block 0 is never used),
    `token_budget` and `max_seqs` hold per rank. `acceptance[k]`: chance that draft k+1 is
    accepted when the ones before it were; drafts beyond its length are never accepted.
    `batches_in_flight`: 2 where the scheduler fills a step while the one before it runs
    (asynchronous scheduling), 1 where it waits for that one's end; a pipeline (a curve with `later`
    stages) has a batch on its way for each stage beside. `host_blocks`: blocks of one
    rank that host memory keeps beside its pool, `host_bandwidth`: bytes per second at which they
    come back, `block_bytes`: bytes of a block; each of one GPU of the rank. `reserve`: the pool
    is scheduled as SGLang does; None: as vLLM does. `balance`: steps that prompts wait at most
    until every rank has one; 0: they do not. `ranks`: who names the rank of a request, unless the
    router knows what each holds. `tails`: window groups keep the end of a
    prompt, and a hit needs it, as in vLLM since 0.29; with states, chunks, several windows or
    `host_blocks` they do not count. `nameless_first`: blocks without a name are taken before those
    of the prefix cache, as in vLLM since 0.24; of pools with full groups alone and those that keep
    tails, which do so anyway. `states`: a hit needs the state at its end in every state group, and
    a hybrid keeps those of chunks' ends as vLLM does since 0.17: with `tails` of prompts' ends
    alone; with windows, chunks, `host_blocks` or `reserve` they do not count. `drops_block`: a hit
    of such a hybrid gives up its last block for the head that drafts.
    """

    role: Role
    replicas: int
    dp: int
    kv_blocks: int
    block_tokens: int
    groups: tuple[Group, ...]
    in_flight: int
    max_seqs: int
    token_budget: int
    prefix_caching: bool
    curve: StepCurve
    acceptance: tuple[float, ...] = ()
    gpus: int = 1
    batches_in_flight: int = 1
    host_blocks: int = 0
    host_bandwidth: float = 0.0
    block_bytes: int = 0
    reserve: Reserve | None = None
    balance: int = 0
    ranks: RankChoice = "router"
    tails: bool = False
    nameless_first: bool = False
    states: bool = False
    drops_block: bool = False


class World(Record, frozen=True, kw_only=True):
    """Everything but the requests: one mixed pool, or a prefill and a decode pool with a link.

    `direct_below`: new tokens (after prefix hits) under which a request prefills on the decode
    instance itself (conditional disaggregation); 0 never. `timeout_s`: a request without a first
    token by then fails. `abort_s`: the client of a request that has not ended by then goes away.
    `front_s` and `front_token_s`: seconds that a request, and each of its input tokens, takes from
    its client to the router; they count in its TTFT, not towards `timeout_s` and `abort_s`.
    """

    pools: tuple[PoolSpec, ...]
    routing: Routing
    decode_routing: Routing = "least_kv"
    link: LinkSpec | None = None
    direct_below: int = 0
    timeout_s: float | None = None
    abort_s: float | None = None
    front_s: float = 0.0
    front_token_s: float = 0.0
    scores: Scores = Scores()
    tree: Tree = Tree()

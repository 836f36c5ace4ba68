"""What the simulator is given: pools, the link between them, and the routers, all as numbers."""

from splitpoint.inputs.deployment import Role, Routing
from splitpoint.pricing.blocks import Group
from splitpoint.record import Record
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.transfer import LinkSpec


class PoolSpec(Record, frozen=True, kw_only=True):
    """`replicas` equal instances of `gpus` GPUs. Each has `dp` ranks with a KV pool of their own
    that step together; `kv_blocks` counts one rank's blocks (block 0 is never used),
    `token_budget` and `max_seqs` hold per rank. `acceptance[k]`: chance that draft k+1 is
    accepted when the ones before it were; drafts beyond its length are never accepted.
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


class World(Record, frozen=True, kw_only=True):
    """Everything but the requests: one mixed pool, or a prefill and a decode pool with a link.

    `direct_below`: new tokens (after prefix hits) under which a request prefills on the decode
    instance itself (conditional disaggregation); 0 never. `timeout_s`: a request without a first
    token by then fails.
    """

    pools: tuple[PoolSpec, ...]
    routing: Routing
    decode_routing: Routing = "least_kv"
    link: LinkSpec | None = None
    direct_below: int = 0
    timeout_s: float | None = None

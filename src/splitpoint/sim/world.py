"""What the simulator is given: pools, the link between them, and the routers, all as numbers."""

from splitpoint.inputs.deployment import Role, Routing
from splitpoint.pricing.blocks import Group
from splitpoint.record import Record
from splitpoint.timing.curve import StepCurve


class PoolSpec(Record):
    """`replicas` equal instances. Each has `dp` ranks with a KV pool of their own that step
    together; `kv_blocks` counts one rank's blocks (block 0 is never used), `token_budget` and
    `max_seqs` hold per rank. `tokens_per_step`: mean tokens a decode step yields with drafts.
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


class LinkSpec(Record):
    """The path from prefill to decode instances.

    A transfer moves `bytes_per_token` x tokens + `fixed_bytes` in `descriptors_per_block` pieces
    per block at `bandwidth` bytes/s shared fairly by the transfers of one prefill instance and of
    one decode instance, after `latency` seconds plus `per_descriptor` seconds each. `layerwise`:
    the pull overlaps prefill. `lease_s`: a prefill instance frees unpulled blocks after this.
    """

    bandwidth: float
    latency: float
    bytes_per_token: float
    fixed_bytes: float
    per_descriptor: float = 0.0
    descriptors_per_block: float = 0.0
    layerwise: bool = False
    lease_s: float = 30.0


class World(Record):
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

"""The path from prefill to decode ranks, as numbers: what the simulator is given of a network."""

from splitpoint.record import Record

# Seconds after which a prefill instance frees what nobody will pull: vLLM's kv_lease_duration (read
# from its source of 0.32, kv_connector/v1/nixl; Mooncake's connector waits 480 s).
LEASE_S = 30.0


class SharedPorts(Record, frozen=True, kw_only=True):
    """Network ports that all ranks of a machine of `gpus` GPUs share, evenly and in each direction:
    how many `ports` it has, and how many a transfer fills at the link's bandwidth (`width`)."""

    gpus: int
    ports: int
    width: int = 1


class LinkSpec(Record, frozen=True, kw_only=True):
    """The path from prefill to decode ranks.

    A transfer moves `bytes_per_token` x tokens + `fixed_bytes` in `descriptors_per_block` pieces
    per block at `bandwidth` bytes/s shared fairly by the transfers of one prefill rank and of
    one decode rank, after `latency` seconds plus `per_descriptor` seconds each. `layerwise`:
    the pull overlaps prefill. `lease_s`: a prefill instance frees unpulled blocks after this.
    `reserve_first`: the decode side has reserved its blocks before the prefill begins.
    `shared`: the ranks of a machine share its ports; None: every GPU has one of its own.
    """

    bandwidth: float
    latency: float
    bytes_per_token: float
    fixed_bytes: float
    per_descriptor: float = 0.0
    descriptors_per_block: float = 0.0
    layerwise: bool = False
    reserve_first: bool = False
    lease_s: float = LEASE_S
    shared: SharedPorts | None = None
    origin: str = ""

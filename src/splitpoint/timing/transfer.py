"""KV transfer from a prefill to a decode instance: bytes, pieces, and the link they cross."""

from splitpoint.record import Record


class LinkSpec(Record, frozen=True, kw_only=True):
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

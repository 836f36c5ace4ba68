"""A GPU and the cluster it stands in: capacities and speeds as their sources state them."""

from typing import Literal

from splitpoint.record import Record

GIB = 1024**3


class Link(Record, frozen=True, kw_only=True):
    """One GPU's share of a link: bytes per second in each direction, and seconds of latency."""

    kind: Literal["nvlink", "nvswitch", "mnnvl", "xgmi", "pcie", "ib", "roce", "ethernet"]
    bandwidth: float
    latency: float


class Flops(Record, frozen=True, kw_only=True):
    """Dense FLOP/s by dtype, without sparsity; None where the hardware has no such units."""

    bf16: float
    fp8: float | None = None
    fp4: float | None = None
    int8: float | None = None


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU. `hbm_gib` is what the driver reports, `marketed_gb` what the vendor prints.

    `bandwidth` is HBM bytes per second. `inside` is the link within a node (or NVLink domain) of
    `domain` GPUs; `outside` is one GPU's share of the network between nodes. `sources` maps each
    field to where its number comes from (published, measured or assumed).
    """

    name: str
    architecture: Literal["ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna3", "cdna4"]
    hbm_gib: float
    marketed_gb: float
    bandwidth: float
    flops: Flops
    gpus_per_node: int
    domain: int
    inside: Link
    outside: Link
    sources: dict[str, str]

    @property
    def hbm(self) -> int:
        """Bytes of HBM as the driver reports them."""
        return int(self.hbm_gib * GIB)

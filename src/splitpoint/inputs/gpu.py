"""A GPU and the cluster it stands in: capacities and speeds as their sources state them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from splitpoint.inputs.checks import Problem
from splitpoint.record import Record

GIB = 1024**3

# Bounds that catch a wrong unit: GB/s or TFLOP/s written where bytes/s or FLOP/s are meant.
BytesPerSecond = Annotated[float, Meta(ge=1e9, le=1e15)]
FlopsPerSecond = Annotated[float, Meta(ge=1e12, le=1e18)]
LinkBandwidth = Annotated[float, Meta(ge=1e6, le=1e14)]
Latency = Annotated[float, Meta(ge=0, le=1)]
Gigabytes = Annotated[float, Meta(ge=1, le=1e5)]
Gpus = Annotated[int, Meta(ge=1, le=4096)]


class Link(Record, frozen=True, kw_only=True):
    """One GPU's share of a link: bytes per second in each direction, and seconds of latency.

    `pcie_host`: PCIe whose peers meet in the host, as ACS or an IOMMU makes them (virtual machines
    and many servers as delivered); `pcie`: they reach each other directly.
    """

    kind: Literal[
        "nvlink", "nvswitch", "mnnvl", "xgmi", "pcie", "pcie_host", "ib", "roce", "ethernet"
    ]
    bandwidth: LinkBandwidth
    latency: Latency


class Flops(Record, frozen=True, kw_only=True):
    """Dense FLOP/s by dtype, without sparsity; None where the hardware has no such units."""

    bf16: FlopsPerSecond
    fp8: FlopsPerSecond | None = None
    fp4: FlopsPerSecond | None = None
    int8: FlopsPerSecond | None = None


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU. `hbm_gib` is what the driver reports, `marketed_gb` what the vendor prints.

    `bandwidth` is HBM bytes per second. `inside` is the link within a node (or NVLink domain) of
    `domain` GPUs; `outside` is one GPU's share of the network between nodes. `cpu` launches its
    kernels. `sources` maps each field to where its number comes from (published, measured or
    assumed).
    """

    name: str
    architecture: Literal["ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna3", "cdna4"]
    hbm_gib: Gigabytes
    marketed_gb: Gigabytes
    bandwidth: BytesPerSecond
    flops: Flops
    gpus_per_node: Gpus
    domain: Gpus
    inside: Link
    outside: Link
    cpu: Literal["x86", "grace"] = "x86"
    sources: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def hbm(self) -> int:
        """Bytes of HBM as the driver reports them."""
        return int(self.hbm_gib * GIB)

    def problems(self) -> list[Problem]:
        """A fault where GB were written as GiB: marketed GB are GiB of HBM at most."""
        if self.hbm_gib <= self.marketed_gb:
            return []
        what = f"{self.hbm_gib} GiB is more than a marketed {self.marketed_gb} GB can hold"
        return [Problem("hbm_gib", what, "GiB as the driver reports them")]

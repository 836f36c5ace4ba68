"""A GPU and the cluster it stands in: capacities and speeds as their sources state them."""

from typing import Literal

import msgspec

from splitpoint.inputs.checks import Problem, positive, within
from splitpoint.record import Record

GIB = 1024**3


class Link(Record, frozen=True, kw_only=True):
    """One GPU's share of a link: bytes per second in each direction, and seconds of latency."""

    kind: Literal["nvlink", "nvswitch", "mnnvl", "xgmi", "pcie", "ib", "roce", "ethernet"]
    bandwidth: float
    latency: float

    def problems(self) -> list[Problem]:
        """Faults of the link."""
        return [*positive("bandwidth", self.bandwidth), *within("latency", self.latency, 0, 1)]


class Flops(Record, frozen=True, kw_only=True):
    """Dense FLOP/s by dtype, without sparsity; None where the hardware has no such units."""

    bf16: float
    fp8: float | None = None
    fp4: float | None = None
    int8: float | None = None

    def problems(self) -> list[Problem]:
        """Faults of the rates."""
        rates = (("bf16", self.bf16), ("fp8", self.fp8), ("fp4", self.fp4), ("int8", self.int8))
        return [fault for name, value in rates for fault in within(name, value, 1e9, 1e18)]


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
    sources: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def hbm(self) -> int:
        """Bytes of HBM as the driver reports them."""
        return int(self.hbm_gib * GIB)

    def problems(self) -> list[Problem]:
        """Faults of the capacities, such as GB written where GiB are meant."""
        faults = [
            *within("hbm_gib", self.hbm_gib, 1, 1e5),
            *within("marketed_gb", self.marketed_gb, 1, 1e5),
            *within("bandwidth", self.bandwidth, 1e9, 1e15),
            *within("gpus_per_node", self.gpus_per_node, 1, 1024),
            *within("domain", self.domain, 1, 4096),
        ]
        if not faults and self.hbm_gib > self.marketed_gb:
            what = f"{self.hbm_gib} GiB is more than a marketed {self.marketed_gb} GB can hold"
            faults.append(Problem("hbm_gib", what, "GiB as the driver reports them"))
        return faults

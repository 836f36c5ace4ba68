"""KV transfer from a prefill to a decode instance: bytes, pieces, and the link they cross.

Every rank of the decode side pulls its own share at the same time, so the path is as wide as the
narrower side: its GPUs times what one GPU's port gives.
"""

from typing import Literal, NamedTuple

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.record import Record
from splitpoint.timing.path import LEASE_S, LinkSpec, SharedPorts

Network = Literal["nvlink", "mnnvl", "xgmi", "pcie", "pcie_host", "ib", "roce", "tcp"]


class NetworkSpeed(Record, frozen=True, kw_only=True):
    """What a transfer gets of a network: the `share` of a port's bandwidth that large transfers
    reach, seconds before the first byte, and seconds to post one descriptor."""

    share: float
    latency: float
    per_descriptor: float
    origin: str


# Pieces of up to 16 KiB by cuda_ipc take 2.3 us each: openucx/ucx issue 3740, 2019-06-20.
# vLLM issue 55434 (2026-09-05; GB200, about 112,000 pieces and 4.9 GB a rank) finds 57% of the
# transfer in posting them, which that piece time and 25 GB/s of movement give.
_PEER = "published: 2.3 us a piece by cuda_ipc (openucx/ucx issue 3740, 2019-06-20); assumed: share"
# 1 MiB in 256 pieces moved at 4.69 GB/s where 64 MiB moved at 12.2 of 12.5: LMCache pull request
# 4161, 2026-07-30, NIXL over UCX.
_RDMA = "published: 0.5 us a piece, 97% of the port (LMCache pull request 4161, 2026-07-30)"

NETWORKS: dict[Network, NetworkSpeed] = {
    "nvlink": NetworkSpeed(share=0.7, latency=0.3e-3, per_descriptor=2.3e-6, origin=_PEER),
    "mnnvl": NetworkSpeed(share=0.7, latency=0.3e-3, per_descriptor=2.3e-6, origin=_PEER),
    "xgmi": NetworkSpeed(
        share=0.6, latency=0.3e-3, per_descriptor=2.3e-6, origin="assumed: as nvlink"
    ),
    "pcie": NetworkSpeed(
        share=0.78,
        latency=0.3e-3,
        per_descriptor=2.3e-6,
        origin="published: 49 GB/s of a Gen 5 port by the push connector; the pull connector fell "
        "back to TCP at 0.5 GB/s before NIXL pull request 2208 (vLLM issue 52607, 2026-08-17)",
    ),
    "pcie_host": NetworkSpeed(
        share=0.25,
        latency=0.3e-3,
        per_descriptor=2.3e-6,
        origin="published: 15.9 GB/s of a Gen 5 port measured by NCCL (LLMServingSim "
        "profiler/perf/RTXPRO6000/hardware.yaml of 2026-09-08); a piece assumed as pcie",
    ),
    "ib": NetworkSpeed(share=0.97, latency=0.5e-3, per_descriptor=0.5e-6, origin=_RDMA),
    "roce": NetworkSpeed(
        share=0.9, latency=0.5e-3, per_descriptor=0.5e-6, origin="assumed: as ib, with congestion"
    ),
    "tcp": NetworkSpeed(
        share=0.5, latency=2e-3, per_descriptor=5e-6, origin="assumed: staged through host memory"
    ),
}
# The network that each kind of link is.
_NETWORK_OF: dict[str, Network] = {
    "nvlink": "nvlink",
    "nvswitch": "nvlink",
    "mnnvl": "mnnvl",
    "xgmi": "xgmi",
    "pcie": "pcie",
    "pcie_host": "pcie_host",
    "ib": "ib",
    "roce": "roce",
    "ethernet": "tcp",
}


class Pieces(NamedTuple):
    """Descriptors that a transfer posts: for each block, and for the request as a whole."""

    per_block: float
    per_request: float


def pieces(engine: EngineName, descriptors_per_block: float, ranks: int) -> Pieces:
    """Descriptors of all `ranks` of the decode side, as an engine's connector cuts a request up.

    vLLM posts every block of every layer by itself. SGLang joins pages that are neighbours in both
    pools (disaggregation/common/utils.py, group_concurrent_contiguous): one piece a layer, assumed
    of a request's pages. TensorRT-LLM gathers a request into a buffer and sends each rank its part
    in one message (cache_transceiver_config.max_tokens_in_buffer). Read 2026-11-30.
    """
    if engine == "vllm":
        return Pieces(descriptors_per_block * ranks, 0.0)
    return Pieces(0.0, ranks * (descriptors_per_block if engine == "sglang" else 1.0))


def link(
    gpu: Gpu,
    prefill: Topology,
    decode: Topology,
    *,
    receiver: Gpu | None = None,
    bytes_per_token: float,
    fixed_bytes: float = 0.0,
    descriptors_per_block: float = 0.0,
    descriptors: float = 0.0,
    hop: float = 0.0,
    hop_across: float = 0.0,
    gpus: int | None = None,
    network: Network | None = None,
    bandwidth: float | None = None,
    machine_ports: int | None = None,
    layerwise: bool = False,
    reserve_first: bool = False,
    lease_s: float = LEASE_S,
) -> LinkSpec:
    """The path between two pools: bandwidth = min(prefill GPUs, decode GPUs) x port x share.

    `bytes_per_token` and `fixed_bytes` are a whole request's over all decode ranks. The pools
    meet inside a node or NVLink domain if all `gpus` of the deployment fit in one (default: the
    two instances), else over the network. `bandwidth` overrides one port's bytes per second,
    `network` the kind. A request lives on one data-parallel rank: only its tp x pp ports count.
    `descriptors` are posted once a request; `hop`: seconds from the end of its prefill until its
    decode instance knows of it, and `hop_across` more over the network.
    `machine_ports`: how many ports all GPUs of a machine share, where each has none of its own.
    `receiver`: what decodes, where that is another GPU than `gpu`: they meet over the network, by
    the worse of both kinds, and the side whose ports move less bounds the path.
    """
    if bandwidth is not None and not bandwidth > 0:
        raise PlanError("transfer_bandwidth", f"{bandwidth} is not above zero", "bytes per second")
    other = receiver or gpu
    total = prefill.gpus + decode.gpus if gpus is None else gpus
    inside = other == gpu and total <= gpu.domain
    ports_of = (gpu.inside,) if inside else (gpu.outside, other.outside)
    hop += 0.0 if inside else hop_across
    kinds: list[Network] = [network or _NETWORK_OF[port.kind] for port in ports_of]
    kind = min(kinds, key=lambda each: NETWORKS[each].share)
    speed = NETWORKS[kind]
    widths = prefill.tp * prefill.pp, decode.tp * decode.pp
    ports = min(widths)
    sides = [
        width * port.bandwidth * speed.share
        for width, port in zip(widths, (ports_of[0], ports_of[-1]), strict=True)
    ]
    shared, told = None, ""
    if machine_ports is not None:
        if other.gpus_per_node != gpu.gpus_per_node:
            what = f"of machines of {gpu.gpus_per_node} and of {other.gpus_per_node} GPUs"
            raise PlanError("transfer_ports", what, "state transfer_bandwidth of one GPU instead")
        width = min(ports, gpu.gpus_per_node)
        shared = SharedPorts(gpus=gpu.gpus_per_node, ports=machine_ports, width=width)
        told = f", {machine_ports} ports a machine of {gpu.gpus_per_node} GPUs"
    if hop:
        told += f", {hop:g} s from one server to the other"
    a_side = "port a side" if ports == 1 else "ports a side"
    given = f"given: {bandwidth:g} bytes/s a port; " if bandwidth is not None else ""
    latency = max(port.latency for port in ports_of) + speed.latency
    return LinkSpec(
        bandwidth=min(sides) if bandwidth is None else ports * bandwidth,
        latency=latency + hop + descriptors * speed.per_descriptor / ports,
        bytes_per_token=bytes_per_token,
        fixed_bytes=fixed_bytes,
        per_descriptor=speed.per_descriptor / ports,
        descriptors_per_block=descriptors_per_block,
        layerwise=layerwise,
        reserve_first=reserve_first,
        lease_s=lease_s,
        shared=shared,
        origin=f"{given}{kind}, {ports} {a_side}{told}; {speed.origin}",
    )


def transfer_seconds(spec: LinkSpec, tokens: int, blocks: int) -> float:
    """Seconds of one transfer alone on its path: latency + descriptors + bytes / bandwidth."""
    size = spec.bytes_per_token * tokens + spec.fixed_bytes
    posted = spec.per_descriptor * spec.descriptors_per_block * blocks
    return spec.latency + posted + size / spec.bandwidth

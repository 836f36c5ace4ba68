"""The link between pools: which one, how wide, and how long one transfer takes."""

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.gpu import Link
from splitpoint.timing.path import SharedPorts
from splitpoint.timing.transfer import NETWORKS, link, pieces, transfer_seconds
from tests.timing.worlds import GPU

ONE = Topology()


def test_pools_that_fit_one_domain_meet_inside_it() -> None:
    near = link(GPU, Topology(tp=4), Topology(tp=4), bytes_per_token=1e5)
    far = link(GPU, Topology(tp=4), Topology(tp=8), bytes_per_token=1e5)
    assert near.bandwidth == 4 * 4e11 * NETWORKS["nvlink"].share
    assert far.bandwidth == 4 * 5e10 * NETWORKS["ib"].share
    assert near.origin.startswith("nvlink") and far.origin.startswith("ib")


def test_the_whole_deployment_decides_where_its_pools_meet() -> None:
    assert link(GPU, ONE, ONE, bytes_per_token=1e5, gpus=16).origin.startswith("ib")


def test_the_narrower_side_is_the_width_and_data_ranks_do_not_widen_it() -> None:
    wide = link(GPU, Topology(tp=2, pp=2), Topology(tp=2), bytes_per_token=1e5)
    assert wide.bandwidth == 2 * 4e11 * NETWORKS["nvlink"].share
    ranks = link(GPU, Topology(dp=4, ep=4), Topology(dp=4, ep=4), bytes_per_token=1e5)
    assert ranks.bandwidth == 4e11 * NETWORKS["nvlink"].share


def test_two_kinds_of_gpu_meet_over_the_network_by_the_worse_of_both() -> None:
    # Ports of 25 GB/s, RoCE; eight of them move as much as four of GPU's.
    slow = replace(
        GPU, name="slow", outside=Link(kind="roce", bandwidth=2.5e10, latency=1e-5), domain=1
    )
    for prefill, decode, least in ((1, 1, 2.5e10), (8, 4, 2e11), (8, 2, 1e11), (2, 8, 5e10)):
        spec = link(
            slow, Topology(tp=prefill), Topology(tp=decode), receiver=GPU, bytes_per_token=1e5
        )
        assert spec.bandwidth == pytest.approx(least * NETWORKS["roce"].share)
        back = link(
            GPU, Topology(tp=decode), Topology(tp=prefill), receiver=slow, bytes_per_token=1e5
        )
        assert back.bandwidth == spec.bandwidth and back.latency == spec.latency
        assert spec.origin.startswith("roce")
    assert link(GPU, ONE, ONE, receiver=GPU, bytes_per_token=1.0) == link(
        GPU, ONE, ONE, bytes_per_token=1.0
    )
    with pytest.raises(PlanError, match="transfer_ports: of machines of 8 and of 4 GPUs"):
        link(
            GPU,
            ONE,
            ONE,
            receiver=replace(slow, gpus_per_node=4),
            bytes_per_token=1.0,
            machine_ports=2,
        )


def test_a_given_bandwidth_is_taken_as_it_is() -> None:
    spec = link(GPU, ONE, ONE, bytes_per_token=1e5, bandwidth=1e9)
    assert spec.bandwidth == 1e9 and spec.origin.startswith("given")
    with pytest.raises(PlanError, match="transfer_bandwidth: 0 is not above zero"):
        link(GPU, ONE, ONE, bytes_per_token=1e5, bandwidth=0)
    with pytest.raises(PlanError, match="transfer_bandwidth: nan"):
        link(GPU, ONE, ONE, bytes_per_token=1e5, bandwidth=float("nan"))


def test_the_ports_of_a_machine_may_be_fewer_than_its_gpus() -> None:
    two = Topology(tp=2)
    spec = link(GPU, two, two, bytes_per_token=1e5, gpus=16, machine_ports=4)
    assert spec.shared == SharedPorts(gpus=GPU.gpus_per_node, ports=4, width=2)
    assert "4 ports a machine" in spec.origin
    assert link(GPU, two, two, bytes_per_token=1e5, gpus=16).shared is None


def test_a_transfer_by_hand() -> None:
    spec = link(
        GPU,
        ONE,
        ONE,
        bytes_per_token=98304.0,
        fixed_bytes=1e6,
        descriptors_per_block=2.0,
        gpus=16,
        network="tcp",
    )
    tcp = NETWORKS["tcp"]
    by_hand = 4e-6 + tcp.latency + 100 * 2 * tcp.per_descriptor
    by_hand += (98304 * 1600 + 1e6) / (5e10 * tcp.share)
    assert transfer_seconds(spec, 1600, 100) == pytest.approx(by_hand)


def test_many_small_pieces_cost_more_than_their_bytes_as_published() -> None:
    # vLLM issue 55434: 112,000 pieces of 4.9 GB over cuda_ipc spend 57% of the time in posting,
    # and move the rest at the rate of the network's ports, about 25 GB/s.
    spec = link(
        GPU,
        ONE,
        ONE,
        bytes_per_token=4.9e9,
        descriptors_per_block=112_000,
        network="mnnvl",
        bandwidth=25e9,
    )
    posting = transfer_seconds(spec, 0, 1) - spec.latency
    assert posting / transfer_seconds(spec, 1, 1) == pytest.approx(0.569, abs=0.02)
    # LMCache pull request 4161: 256 pieces of 4 KiB reach 4.69 of 12.2 GB/s.
    spec = link(
        GPU,
        ONE,
        ONE,
        bytes_per_token=2**20,
        descriptors_per_block=256,
        network="ib",
        bandwidth=12.2e9,
    )
    moved = 2**20 / (transfer_seconds(spec, 1, 1) - spec.latency)
    assert moved == pytest.approx(4.69e9, rel=0.08)


def test_connectors_cut_a_request_up_in_their_own_ways() -> None:
    # 61 layers a block, 8 ranks: vLLM posts them block by block, SGLang a layer at a time, and
    # TensorRT-LLM one buffer a rank.
    assert pieces("vllm", 61.0, 8) == (488.0, 0.0)
    assert pieces("sglang", 61.0, 8) == (0.0, 488.0)
    assert pieces("trtllm", 61.0, 8) == (0.0, 8.0)


def test_a_hop_and_the_pieces_of_a_request_come_before_its_bytes() -> None:
    two, four = Topology(tp=2), Topology(tp=4)
    plain = link(GPU, two, four, bytes_per_token=1e5)
    spec = link(GPU, two, four, bytes_per_token=1e5, descriptors=100.0, hop=0.05)
    more = transfer_seconds(spec, 1000, 60) - transfer_seconds(plain, 1000, 60)
    assert more == pytest.approx(0.05 + 100 * NETWORKS["nvlink"].per_descriptor / 2)
    assert "0.05 s from one server to the other" in spec.origin
    near, far = (
        link(GPU, two, four, bytes_per_token=1e5, hop=0.05, hop_across=0.1, gpus=gpus)
        for gpus in (GPU.domain, GPU.domain + 1)
    )
    assert near.latency == pytest.approx(plain.latency + 0.05)
    apart = GPU.outside.latency + NETWORKS["ib"].latency
    assert far.latency == pytest.approx(apart + 0.05 + 0.1)


def test_every_network_states_its_origin() -> None:
    for speed in NETWORKS.values():
        assert speed.origin.split(":")[0] in ("published", "measured", "assumed")
        assert 0 < speed.share <= 1

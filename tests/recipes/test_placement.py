"""Placement: who runs where."""

from hypothesis import given
from hypothesis import strategies as st

from splitpoint.inputs.deployment import Deployment, Topology
from splitpoint.recipes.placement import place
from tests.report.sample import pool

topologies = st.builds(
    Topology,
    tp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
)
deployments = st.one_of(
    st.builds(lambda n, t: Deployment(pools=(pool("mixed", n, t),)), st.integers(1, 6), topologies),
    st.builds(
        lambda n, m, p, d: Deployment(pools=(pool("prefill", n, p), pool("decode", m, d))),
        st.integers(1, 4),
        st.integers(1, 4),
        topologies,
        topologies,
    ),
)


@given(deployments, st.sampled_from([4, 8]))
def test_every_gpu_serves_one_instance_and_every_instance_has_all_its_gpus(
    deployment: Deployment, per_node: int
) -> None:
    instances = place(deployment, per_node)
    taken = [(s.node, gpu) for i in instances for s in i.shares for gpu in s.gpus]
    assert len(taken) == len(set(taken)) == deployment.gpus
    assert all(gpu < per_node for _, gpu in taken)
    for instance in instances:
        assert sum(share.ranks for share in instance.shares) == instance.pool.topology.dp
        if instance.pool.topology.gpus <= per_node:
            assert len(instance.shares) == 1


@given(deployments, st.sampled_from([4, 8]))
def test_no_two_instances_listen_on_one_port(deployment: Deployment, per_node: int) -> None:
    instances = place(deployment, per_node)
    side = [i.side_port + rank for i in instances for rank in range(i.pool.topology.dp)]
    ports = side + [p for i in instances for p in (i.port, i.rpc_port, i.master_port)]
    assert len(ports) == len(set(ports))


def test_six_single_gpus_and_a_pair_fill_one_node_with_the_pair_first() -> None:
    pools = (pool("prefill", 6), pool("decode", 1, Topology(tp=2)))
    instances = {i.name: i.shares[0] for i in place(Deployment(pools=pools), 8)}
    assert instances["decode-0"].gpus == (0, 1)
    assert instances["prefill-0"].gpus == (2,)
    assert instances["prefill-5"].gpus == (7,)
    assert {share.node for share in instances.values()} == {0}


def test_ranks_of_four_gpus_take_a_node_of_four_each() -> None:
    (instance,) = place(Deployment(pools=(pool("mixed", 1, Topology(tp=4, dp=4)),)), 4)
    assert [(s.node, s.first_rank, s.ranks) for s in instance.shares] == [
        (0, 0, 1),
        (1, 1, 1),
        (2, 2, 1),
        (3, 3, 1),
    ]


def test_a_rank_of_two_nodes_starts_on_the_first_of_them() -> None:
    (instance,) = place(Deployment(pools=(pool("mixed", 1, Topology(tp=8, dp=2)),)), 4)
    assert [(s.first_rank, s.ranks) for s in instance.shares] == [(0, 1), (0, 0), (1, 1), (1, 0)]


def test_a_stage_count_that_no_node_divides_takes_the_largest_equal_shares() -> None:
    (instance,) = place(Deployment(pools=(pool("mixed", 1, Topology(tp=2, pp=6)),)), 8)
    assert [len(share.gpus) for share in instance.shares] == [6, 6]

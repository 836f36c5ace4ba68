"""Which GPUs of which node each instance of a deployment takes, and which ports it listens on.

Instances are packed in order of size, largest first, so that a tensor-parallel group never
straddles two halves of a node. An instance larger than a node takes whole nodes: each rank on
one node where it fits, else every node the same number of GPUs.
"""

from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.routing import Role
from splitpoint.record import Record

HTTP_PORT = 8100
SIDE_CHANNEL_PORT = 5600  # vLLM's default for NIXL; rank r of an instance listens r above it
RPC_PORT = 29550  # vLLM's default of --data-parallel-rpc-port
MASTER_PORT = 29650
MASTER_PORTS = 16  # SGLang 0.5.23 takes six above it, and with its Rust server one a rank more


class Share(Record, frozen=True, kw_only=True):
    """What one node holds of an instance: its GPUs, and the data-parallel ranks that start there
    (`ranks` is 0 where a rank that started on an earlier node goes on)."""

    node: int
    gpus: tuple[int, ...]
    first_rank: int
    ranks: int


class Instance(Record, frozen=True, kw_only=True):
    """One engine instance in its place. `side_port` is the first of `dp` ports, `master_port` of
    `MASTER_PORTS`."""

    name: str
    role: Role
    pool: Pool
    shares: tuple[Share, ...]
    port: int
    side_port: int
    rpc_port: int
    master_port: int

    @property
    def head(self) -> int:
        """The node whose process answers HTTP."""
        return self.shares[0].node


def place(deployment: Deployment, gpus_per_node: int) -> tuple[Instance, ...]:
    """Every instance with its GPUs, in the order of the deployment's pools."""
    wanted = [pool for pool in deployment.pools for _ in range(pool.replicas)]
    roles = [pool.role for pool in wanted]
    names = [f"{role}-{roles[:index].count(role)}" for index, role in enumerate(roles)]
    order = sorted(range(len(wanted)), key=lambda index: -wanted[index].topology.gpus)
    taken: list[int] = []
    shares = {index: _shares(wanted[index].topology, gpus_per_node, taken) for index in order}
    placed: list[Instance] = []
    ranks = 0
    for index, pool in enumerate(wanted):
        placed.append(
            Instance(
                name=names[index],
                role=pool.role,
                pool=pool,
                shares=shares[index],
                port=HTTP_PORT + index,
                side_port=SIDE_CHANNEL_PORT + ranks,
                rpc_port=RPC_PORT + index,
                master_port=MASTER_PORT + MASTER_PORTS * index,
            )
        )
        ranks += pool.topology.dp
    return tuple(placed)


def _shares(topology: Topology, gpus_per_node: int, taken: list[int]) -> tuple[Share, ...]:
    if topology.gpus <= gpus_per_node:
        node = next(
            (n for n, used in enumerate(taken) if used + topology.gpus <= gpus_per_node),
            len(taken),
        )
        return (_take(taken, node, topology.gpus, 0, topology.dp),)
    rank_gpus = topology.tp * topology.pp
    if rank_gpus <= gpus_per_node:
        per_node = gpus_per_node // rank_gpus
        firsts = range(0, topology.dp, per_node)
        return tuple(
            _take(
                taken,
                len(taken),
                rank_gpus * min(per_node, topology.dp - first),
                first,
                min(per_node, topology.dp - first),
            )
            for first in firsts
        )
    # vLLM asks for equal shares; the last candidate, one GPU a node, always divides.
    nodes = next(n for n in range(2, topology.gpus + 1) if _divides(topology, n, gpus_per_node))
    local = topology.gpus // nodes
    return tuple(
        _take(
            taken,
            len(taken),
            local,
            index * local // rank_gpus,
            int(index * local % rank_gpus == 0),
        )
        for index in range(nodes)
    )


def _divides(topology: Topology, nodes: int, gpus_per_node: int) -> bool:
    """Whether equal shares fit the nodes and no share holds a part of two ranks."""
    local, left = divmod(topology.gpus, nodes)
    rank = topology.tp * topology.pp
    return left == 0 and local <= gpus_per_node and (rank % local == 0 or local % rank == 0)


def _take(taken: list[int], node: int, gpus: int, first_rank: int, ranks: int) -> Share:
    if node == len(taken):
        taken.append(0)
    first = taken[node]
    taken[node] += gpus
    return Share(
        node=node, gpus=tuple(range(first, first + gpus)), first_rank=first_rank, ranks=ranks
    )

"""Which rows of the measured kernel tables the fit leaves out, on tables of a few rows."""

from typing import Any

import numpy as np
import pytest

pd: Any = pytest.importorskip("pandas")

from splitpoint.inputs import facts  # noqa: E402
from splitpoint.timing import kernel_tables as tables  # noqa: E402

B200 = facts.gpu("B200")
# A layer of DeepSeek's shape in fp8: 256 experts of 44 MB.
WHOLE, SPREAD = (7168, 2048, 8, 256), (7168, 2048, 8, 384)
TOKENS = (8192, 16384)


def layer(shape: tuple[int, int, int, int], seconds: dict[int, float]) -> Any:
    """Rows of a layer on some numbers of ranks, that take so long for 8,192 tokens."""
    names = dict(zip(tables.LAYER, shape, strict=True))
    return pd.DataFrame(
        [
            {**names, "moe_tp_size": 1, "moe_ep_size": ep, "num_tokens": n}
            | {"latency": 1e3 * taken * n / 8192}
            for ep, taken in seconds.items()
            for n in TOKENS
        ]
    )


def test_ranks_that_compute_every_pair_are_known_by_their_time() -> None:
    rows = pd.concat(
        [
            layer(WHOLE, {1: 0.08, 2: 0.078, 8: 0.07, 16: 0.036}),
            layer(SPREAD, {1: 0.08, 2: 0.042, 8: 0.014, 16: 0.009}),
        ],
        ignore_index=True,
    )
    left_out = tables._all_pairs(rows, np.ones(len(rows), bool))
    # All of the one layer but its rows of one rank; nothing of the other.
    assert rows[left_out].num_experts.unique().tolist() == [256]
    assert sorted(rows[left_out].moe_ep_size.unique()) == [2, 8, 16]
    assert left_out.sum() == 6
    # Held-out rows say nothing.
    assert not tables._all_pairs(rows, np.zeros(len(rows), bool)).any()


def test_experts_read_faster_than_memory_allows_were_not_all_reached() -> None:
    rows = pd.concat(
        [layer(WHOLE, {1: 0.9e-3, 4: 0.9e-3}), layer(SPREAD, {1: 3e-3})], ignore_index=True
    ).assign(num_tokens=128 * 4)
    operator = tables.experts(rows, "fp8")
    seconds = rows.latency.to_numpy() / 1e3
    # 256 experts of 44 MB each take 1.4 ms at 8 TB/s, and the tokens a little.
    assert 1.4e-3 < operator.bytes[0] / B200.bandwidth < 1.5e-3
    found = tables._partly_reached(rows, operator, seconds, np.ones(len(rows), bool), B200)
    assert rows[found].num_experts.unique().tolist() == [256]
    assert found.sum() == 4


@pytest.mark.parametrize("ranks", [1, 8, 64])
@pytest.mark.parametrize(("count", "topk"), [(256, 8), (384, 8), (160, 8), (128, 1)])
def test_pairs_of_the_first_rank_are_those_that_balanced_tokens_bring(
    count: int, topk: int, ranks: int
) -> None:
    step = -(-count // topk)
    for new in (1, 3, 16, 48, 80, 300, 1000):
        hit = [0] * count
        for token in range(new):
            first = token if new >= step else token * step // new
            for choice in range(topk):
                hit[(first + choice * step) % count] += 1
        own = hit[: count // ranks]
        found = tables._first_rank(new, topk, count, ranks)
        assert found == (sum(own), sum(n > 0 for n in own))
    # A third more than its share: 48 tokens come twice to the first 16 of every 32 experts, and the
    # rank's 4 are among them.
    assert tables._first_rank(48, 8, 256, 64) == (8, 4)

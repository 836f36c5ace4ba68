"""The frontier against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from splitpoint.search.frontier import frontier

points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def test_a_menu_runs_from_throughput_to_pace() -> None:
    assert frontier([9, 5, 6, 1, 5], [1, 5, 3, 9, 4]) == (0, 2, 1, 3)


def test_of_equal_points_the_first_stays() -> None:
    assert frontier([1, 1], [1, 1]) == (0,)


@given(points)
def test_no_point_of_the_frontier_is_beaten_and_every_other_is(
    pairs: list[tuple[int, int]],
) -> None:
    kept = frontier([p[0] for p in pairs], [p[1] for p in pairs])

    def beaten(index: int) -> bool:
        mine = pairs[index]
        return any(
            other[0] >= mine[0] and other[1] >= mine[1] and (other != mine or place < index)
            for place, other in enumerate(pairs)
        )

    assert sorted(kept) == [index for index in range(len(pairs)) if not beaten(index)]

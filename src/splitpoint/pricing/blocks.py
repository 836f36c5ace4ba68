"""KV blocks of one rank: page size, block tokens, groups, and blocks a request takes.

The engine draws every group's blocks from one pool of equal blocks, so a hybrid pays for its
state in whole blocks of the size that makes an attention page as large as a state.
"""

from typing import Literal

from splitpoint.record import Record

GroupKind = Literal["full", "window", "chunk", "state"]


class Group(Record, frozen=True, kw_only=True):
    """Layers that share one block table. `window`: tokens for window and chunk groups; `fixed`:
    blocks a state group holds whatever the context. `padding` layers fill the group."""

    kind: GroupKind
    layers: int
    padding: int = 0
    window: int = 0
    fixed: int = 0


class KvLayout(Record, frozen=True, kw_only=True):
    """How one rank lays out its KV memory.

    A block holds `block_tokens` tokens of each of a group's `group_layers` layers and takes
    `block_bytes` = group_layers x page_bytes from the pool. `in_flight`: tokens that a window
    group may hold beyond its window.
    """

    block_tokens: int
    page_bytes: int
    group_layers: int
    groups: tuple[Group, ...]
    in_flight: int
    unpadded_state_bytes: int = 0

    @property
    def block_bytes(self) -> int:
        """Bytes of one pool block."""
        return self.group_layers * self.page_bytes

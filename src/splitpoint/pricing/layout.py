"""How one rank lays out its KV memory, as a record: what the simulator is given of it."""

from typing import Literal

from splitpoint.record import Record

GroupKind = Literal["full", "window", "chunk", "state"]


class Group(Record, frozen=True, kw_only=True):
    """Layers that share one block table. `window`: tokens for window and chunk groups; `fixed`:
    blocks a state group holds whatever the context. `padding` layers fill the group.
    `block_tokens`: tokens of this group's blocks where they differ from the layout's (0: equal).
    `content_bytes`: what one block holds once written, all its layers, without padding.
    `counted_bytes`: what a block weighs in the concurrency that older versions print (0: all
    blocks weigh the same). `role`: the cache in words."""

    kind: GroupKind
    layers: int
    padding: int = 0
    window: int = 0
    fixed: int = 0
    block_tokens: int = 0
    content_bytes: int = 0
    counted_bytes: int = 0
    role: str = ""


class KvLayout(Record, frozen=True, kw_only=True):
    """How one rank lays out its KV memory.

    A block holds `block_tokens` tokens of each of a group's `group_layers` layers and takes
    `block_bytes` = group_layers x page_bytes from the pool. `in_flight`: tokens that a window
    group may hold beyond its window. Where pages differ in size, `packed_bytes` is the block and
    `page_bytes` the largest page. With pipeline stages it describes the stage that needs most.
    Under `dcp` a rank's full groups hold every dcp-th token of a request.
    """

    block_tokens: int
    page_bytes: int
    group_layers: int
    groups: tuple[Group, ...]
    in_flight: int
    unpadded_state_bytes: int = 0
    packed_bytes: int = 0
    tp: int = 1
    pp: int = 1
    dcp: int = 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one pool block."""
        return self.packed_bytes or self.group_layers * self.page_bytes

    @property
    def padding_share(self) -> float:
        """Bytes added to a state so that its page equals an attention page, over the state."""
        if not self.unpadded_state_bytes:
            return 0.0
        return self.page_bytes / self.unpadded_state_bytes - 1

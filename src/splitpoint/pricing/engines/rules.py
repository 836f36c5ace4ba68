"""What differs between engines and their versions when memory is laid out, as one record."""

import re
from typing import Literal, NamedTuple

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.record import Record

Packing = Literal["free", "dense", "slots", "tuples"]
Budget = Literal["of total", "of free before load", "of free after load"]


class Version(NamedTuple):
    """Major, minor and patch number; what follows does not change a rule."""

    major: int
    minor: int
    patch: int = 0


class Rules(Record, frozen=True, kw_only=True):
    """An engine's rules for one configuration.

    `batches_in_flight`: steps whose tokens a window group still holds. `state_blocks`: blocks of
    each state group of a request. `latent_grain`: block tokens of a hybrid with latent attention
    are multiples of it. `group_ratio`: layer kinds whose counts differ by less share one group
    size. `tokens_by_concurrency`: the printed KV tokens are concurrency x max length, else blocks
    over groups x block tokens. `budget`: what the memory fraction is taken of. `charges_graphs`:
    the CUDA-graph estimate is taken from the KV pool. `sampler_copies` and `draft_copies`: fp32
    logits of every sequence alive at the sampler's peak, and what verifying drafts adds.
    `pages_equal`: a state's page is padded to an attention page, and `block_is_grain`: the block
    so found is a multiple of the configured one. `packing`: how pages of several sizes share a
    block. "free": groups of any shape, the widest is the block. Before, groups were cut to the
    count of full layers, and a block was "dense" (the widest group), "slots" (for each page size
    the most that a group has of it) or "tuples" (of every size as many as the longest row); the
    last two weighed blocks by their bytes in the concurrency they printed. `overlapped`: the
    scheduler fills a step while the one before it runs. `tails`: the prefix cache keeps of window
    groups the end of a prompt alone, and hits need it. `nameless_first`: blocks without a name are
    taken before all others. `states`: it keeps a hybrid's states of chunks' ends, and hits need
    one.
    """

    batches_in_flight: int
    state_blocks: int
    latent_grain: int
    group_ratio: float
    tokens_by_concurrency: bool
    budget: Budget
    charges_graphs: bool
    sampler_copies: float
    draft_copies: float
    pages_equal: bool = True
    block_is_grain: bool = True
    packing: Packing = "free"
    overlapped: bool = False
    tails: bool = False
    nameless_first: bool = False
    states: bool = False


def version_of(engine: Engine) -> Version:
    """The numbers of the engine's version, as in 0.26.1rc1.dev1177."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", engine.version)
    if found is None:
        raise PlanError("engine.version", f"{engine.version!r} is not a version", "such as 0.32.0")
    return Version(int(found[1]), int(found[2]), int(found[3] or 0))

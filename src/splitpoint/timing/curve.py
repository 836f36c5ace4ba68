"""StepCurve: the seconds of one engine step as tables; all that the simulator knows of speed.

One step holds n decoding sequences whose contexts sum to c tokens, and p new prefill tokens
that form q (query, key) pairs and whose requests have a prefix tokens before them:

    seconds = work + decode_context[n] x c + prefill_pair x q + prefill_prefix x a
    work    = decode[n] when p = 0 (graphs, padding inside),
              else mixed[n x (1 + drafts) + p] + mixed_decode[n]

so between two changes of the batch k steps have a closed form. Times are integer picoseconds:
sums are then exact, and k steps taken at once equal k single steps to the last bit. Of ranks that
step together (`dp`) the slowest counts, but for what they do `together` in a step with prefill.
A pipeline has such tables for each of its stages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splitpoint.record import Record

Picos = NDArray[np.int64]
PICO = 1e-12


class Together(Record, frozen=True, kw_only=True):
    """What the dp ranks of an instance do together in a step with prefill: they gather their tokens
    and each serves a share of the experts to all of them, so their mean counts, not the fullest.

    `work[t]`, t = 0..token budget: the part of `mixed[t]` that this is, t being the tokens of all
    ranks over their number, rounded up. `padded`: while no rank has more tokens than this, all are
    padded to the fullest (CUDA graphs). `least`: picoseconds of the shortest step beyond that.
    """

    work: Picos
    padded: int = 0
    least: int = 0

    def times(self, factor: float) -> Together:
        """The same with all times multiplied, rounded down."""
        work = np.floor(self.work * factor).astype(np.int64)
        return Together(work=work, padded=self.padded, least=int(self.least * factor))


class StepCurve(Record, frozen=True, kw_only=True):
    """Step times of one rank of an instance.

    `decode[n]`, n = 0..max sequences: a pure decode step without the context term.
    `decode_context[n]`: picoseconds per token of summed context when n sequences decode.
    `mixed[t]`, t = 0..token budget: a step with t tokens in all, some of them prefill.
    `mixed_decode[n]`: what n sequences that decode add to such a step beside their tokens and
    their context; None: nothing.
    `prefill_pair`: picoseconds per (new token, attended token) pair.
    `prefill_prefix`: picoseconds per token before a request's chunk, whatever the chunk's length.
    `together`: the part of `mixed` that follows the mean of the dp ranks; None: nothing.
    `drafts`: speculative tokens verified per sequence and step. Layers with a window cost the
    same at any context past it, so their share is inside `decode` and `mixed`.
    `later`: the stages of a pipeline behind this one, which is then its first.
    """

    decode: Picos
    decode_context: Picos
    mixed: Picos
    prefill_pair: int
    prefill_prefix: int = 0
    mixed_decode: Picos | None = None
    together: Together | None = None
    drafts: int = 0
    origin: str = ""
    later: tuple[StepCurve, ...] = ()

    @property
    def stages(self) -> tuple[StepCurve, ...]:
        """All stages in order: a batch passes one after the other."""
        return (self, *self.later)

"""What an engine logged of its own work: each request's moments, or each step's batch and time.

Requests come as JSON Lines of vLLM's per-request moments (input_toks, output_toks, arrival_time on
the client's clock; queued_ts, scheduled_ts, first_token_ts, last_token_ts on the engine's), as
LLMServingSim publishes its replays.
"""

from collections.abc import Iterable

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.live.imports.foreign import Fields
from splitpoint.measurement import Measurement, measured_run, of_run

SOURCE = "engine log, every request"


def requests(lines: Iterable[Fields], name: str) -> Measurement:
    """The measurement of logged requests; the client's clock meets the engine's where the way
    from one to the other was shortest."""
    moments = ("queued_ts", "first_token_ts", "last_token_ts")
    rows = []
    sent = []
    for fields in lines:
        tokens = (fields.count("input_toks"), fields.count("output_toks"))
        rows.append([*(fields.number(moment) for moment in moments), *tokens])
        sent.append(fields.optional("arrival_time"))
        if not rows[-1][0] <= rows[-1][1] <= rows[-1][2]:
            raise PlanError(fields.place("first_token_ts"), "is not between queued and last token")
    queued, first, last, isl, osl = np.array(rows).T
    arrive = queued
    if all(moment is not None for moment in sent):
        clients = np.array(sent, dtype=np.float64)
        arrive = clients + (queued - clients).min()
    run = measured_run(
        name,
        arrive_s=arrive,
        first_token_s=first,
        end_s=last,
        isl=isl.astype(np.int64),
        osl=osl.astype(np.int64),
    )
    return of_run(run, name=name, source=SOURCE)

"""The service level that a deployment is judged by."""

from typing import Annotated

from msgspec import Meta

from splitpoint.record import Record


class Slo(Record, frozen=True, kw_only=True):
    """The service level: `percentile` of requests must see TTFT and TPOT within these seconds."""

    ttft_s: Annotated[float, Meta(gt=0)]
    tpot_s: Annotated[float, Meta(gt=0)]
    percentile: Annotated[float, Meta(gt=0, lt=100)] = 90.0

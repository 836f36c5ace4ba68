"""Seconds: what a step costs on a GPU, and what a KV transfer costs on a link.

`operators` counts, `efficiency`, `collectives` and `host` price, `bake` adds up to a `StepCurve`.
"""

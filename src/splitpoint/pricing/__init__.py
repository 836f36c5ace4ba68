"""Bytes: weights, KV blocks, the memory ladder, concurrency, handoff. Exact integers."""

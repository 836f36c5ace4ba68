"""Real engines: starting and measuring a recipe, reading what was measured, fitting to it.

Only `cli` imports it.
"""

"""Real engines: what was measured on them, and step curves fitted to it.

Starting and measuring engines comes with a later release.
"""

"""Which deployments could serve the workload, which are worth simulating, and how they did.

space (legal and fitting instances) -> phases (each phase priced alone) -> match (P and D counts
that keep step) -> sweep (simulated) -> frontier. Every step says what it left out and why.
"""

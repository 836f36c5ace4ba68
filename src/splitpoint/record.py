"""What every record of the package shares: frozen, keyword-only, unknown keys refused.

msgspec does not hand `frozen` and `kw_only` down to type checkers and subclasses, so every
record says them again: `class Gpu(Record, frozen=True, kw_only=True)`.
"""

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact or a result. It never changes once made; `msgspec.structs.replace` makes another."""

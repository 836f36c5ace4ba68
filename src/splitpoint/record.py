"""What every record of the package shares: frozen, keyword-only, unknown keys refused."""

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact or a result. It never changes once made; `msgspec.structs.replace` makes another."""

"""What we are told: frozen records, checks, and the readers that fill them. No arithmetic."""

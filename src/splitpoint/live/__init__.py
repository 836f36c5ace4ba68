"""Real engines: starting, probing and measuring them. Empty until the release that brings them."""

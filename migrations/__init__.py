"""The database's schema: Alembic migrations, run under a lock, and the check that code and schema match."""

"""The journal: what a process did, on its own disk, until the drainer has it in Postgres."""

"""The drainer: one process per host that moves the journals into Postgres, each call exactly once."""

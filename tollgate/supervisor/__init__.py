"""Starts the parts of Tollgate, watches them, restarts what dies and stops all in order."""

"""The FastAPI routes: thin handlers over the services. The lane's own paths are not served here."""

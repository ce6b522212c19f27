"""The HTTP routes, one file per resource. Each file has a `router`; api/app.py includes them all."""

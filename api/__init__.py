"""The HTTP front end: validates, enqueues, waits. Never imports mlx nor numpy."""

"""The queue side of Fieldcast: jobs, documents, the batching worker, webhooks, metrics. Knows Redis; asks the engine.

Only batch_worker.py's process (main.py, runner.py) loads the engine; every other module imports no mlx.
"""

"""`fieldcast up`: everything on one machine, one sample job through it, then it stays up until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from rich.markup import escape

from deploy import show
from deploy.listening import url
from deploy.part import child_environment, fieldcast_command
from deploy.sample_job import SAMPLE_PRESET, answer_sample, client, wait_until_ready
from deploy.stack import Stack
from engine.errors import FieldcastError, ModelUnavailable
from engine.models.builtin import available
from worker.settings import Settings

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_KEYSTROKE_S = 0.3  # make, a shell and the terminal may each deliver one Ctrl-C


def up(settings: Settings, *, once: bool, as_json: bool) -> int:
    """Returns the exit code: 0 after a clean stop, 1 when something failed."""
    # The parts must find the same folder, and so the same socket, as this process.
    settings = settings.model_copy(update={"data_dir": settings.data_dir.expanduser().absolute()})
    try:
        return asyncio.run(_up(settings, once=once, as_json=as_json))
    except FieldcastError as error:
        show.complain(str(error))
        return 1


async def _up(settings: Settings, *, once: bool, as_json: bool) -> int:
    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    stack = Stack(settings, show.say)
    serving = asyncio.create_task(_serve(stack, settings, once=once, as_json=as_json))
    first_signal_at: float | None = None

    def on_signal() -> None:
        nonlocal first_signal_at
        now = time.monotonic()
        if first_signal_at is None:
            first_signal_at = now
            show.say("draining; Ctrl-C again to hurry")
            serving.cancel()
        elif now - first_signal_at > SAME_KEYSTROKE_S:
            show.say("hurrying")
            hurry.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await serving
    except asyncio.CancelledError:
        return 1 if once else 0  # with --once, the job was not answered
    finally:
        await stack.stop(hurry)


async def _serve(stack: Stack, settings: Settings, *, once: bool, as_json: bool) -> int:
    stack.take_ports()
    await _get_model(settings)
    stack.start()
    base_url = url(settings.host, stack.port)
    show.say(f"starting on {base_url} with {settings.model}; logs in {settings.data_dir / 'logs'}")
    async with client(base_url, stack.key) as http:
        await _unless_failed(stack, asyncio.create_task(wait_until_ready(http)))
        stack.ready = True
        show.say(f"ready; posting a sample job with the preset {SAMPLE_PRESET}")
        try:
            job = await answer_sample(http)
        except FieldcastError as error:
            if once:
                raise
            show.complain(str(error))
        else:
            if as_json:
                show.print_json(job)
            else:
                show.job(job)
            if once:
                return 0 if job["status"] == "completed" else 1
    _print_urls(settings, base_url)
    await asyncio.Event().wait()  # until the task is cancelled by a signal
    return 0


async def _unless_failed(stack: Stack, waiting: asyncio.Task[None]) -> None:
    """Waits for the task, or raises what makes it hopeless."""
    try:
        await asyncio.wait([waiting, stack.failed], return_when=asyncio.FIRST_COMPLETED)
        if stack.failed.done():
            stack.failed.result()
        await waiting
    finally:
        waiting.cancel()


async def _get_model(settings: Settings) -> None:
    """A download is seen here, with its progress, not in the worker's log."""
    if available(settings.data_dir).get(settings.model) or Path(settings.model).expanduser().is_dir():
        return
    # Its own process: converting a model imports mlx, and nothing here may.
    pull = await asyncio.create_subprocess_exec(
        *fieldcast_command("models", "pull", settings.model),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=child_environment({"FIELDCAST_DATA_DIR": str(settings.data_dir)}),
        start_new_session=True,
    )
    try:
        code = await pull.wait()
    finally:
        if pull.returncode is None:
            os.killpg(pull.pid, signal.SIGKILL)  # with the pip that it started; the next start clears what they left
            await pull.wait()
    if code:
        raise ModelUnavailable(f"the model {settings.model} could not be prepared")


def _print_urls(settings: Settings, base_url: str) -> None:
    show.out.print(f"\n[bold]Fieldcast is up[/bold] on {escape(base_url)}")
    for path, what in (
        ("/v1/jobs", "post jobs here"),
        ("/v1/presets", "ready-made schemas"),
        ("/v1/models", "the model"),
        ("/openapi.json", "the API's description"),
        ("/metrics", "the API's metrics"),
        ("/readyz", "is it ready"),
    ):
        show.out.print(f"  {escape(base_url)}{path:<15} {what}")
    for part, port in (("worker", settings.worker_metrics_port), ("webhook sender", settings.webhooks_metrics_port)):
        show.out.print(f"  {escape(url(settings.metrics_host, port))}/metrics        the {part}'s metrics")
    show.out.print("Ctrl-C drains and stops it.")

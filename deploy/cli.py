"""The `fieldcast` command. Each command's work is in a file of its own, imported when it is called.

Exit codes: 0 done, 1 failed, 2 bad usage (also a setting that cannot be used).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from deploy import show
from engine.errors import FieldcastError
from engine.version import __version__

if TYPE_CHECKING:
    from worker.settings import Settings

FAILED, BAD_USAGE = 1, 2

app = typer.Typer(
    name="fieldcast",
    help="Answers typed questions about documents: every field at once, with a probability for every allowed value.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="The built-in models and the one in use.", invoke_without_command=True)
presets_app = typer.Typer(help="The ready-made schemas.", invoke_without_command=True)
keys_app = typer.Typer(help="API keys: whose they are, new ones, and revoking.", invoke_without_command=True)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(presets_app, name="presets")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the API, 0: any free one. [default: FIELDCAST_PORT]")
]


def main() -> None:
    """The entry of the `fieldcast` script."""
    try:
        app(prog_name="fieldcast")
    except FieldcastError as error:
        show.complain(str(error))
        sys.exit(FAILED)


@contextmanager
def bad_usage(error: type[Exception]) -> Iterator[None]:
    """Says what is wrong and exits with 2 where `error` is raised inside."""
    try:
        yield
    except error as raised:
        show.complain(str(raised))
        raise typer.Exit(BAD_USAGE) from None


def read_settings(port: int | None = None) -> Settings:
    """The settings from the environment. Ends the process (bad usage) when one of them cannot be used."""
    from worker.settings import Settings

    try:
        settings = Settings() if port is None else Settings(port=port)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            show.complain(f"FIELDCAST_{name}: {problem['msg']}")
        raise typer.Exit(BAD_USAGE) from None
    if settings.redis_url is not None:
        from worker.connection import BadRedisURL, check_url

        try:
            check_url(settings.redis_url)
        except BadRedisURL as error:
            show.complain(f"FIELDCAST_REDIS_URL: {error}")
            raise typer.Exit(BAD_USAGE) from None
    return settings


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fieldcast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("up")
def up_command(
    once: Annotated[bool, typer.Option("--once", help="Answer one sample job, then stop.")] = False,
    port: Port = None,
    as_json: Json = False,
) -> None:
    """Start everything on this machine, answer one sample job, and stay up until Ctrl-C."""
    settings = read_settings(port)
    from deploy.up import up

    raise typer.Exit(up(settings, once=once, as_json=as_json))


@app.command("api")
def api_command(
    port: Port = None,
    listen_fd: Annotated[int | None, typer.Option("--listen-fd", hidden=True)] = None,
    own_key: Annotated[str | None, typer.Option("--own-key", hidden=True)] = None,
) -> None:
    """Run the HTTP API alone."""
    settings = read_settings(port)
    from deploy.parts import api

    raise typer.Exit(api(settings, listen_fd, own_key))


@app.command("worker")
def worker_command() -> None:
    """Run one worker alone: it loads the model and answers jobs."""
    settings = read_settings()
    from deploy.parts import worker

    raise typer.Exit(worker(settings))


@app.command("webhooks")
def webhooks_command() -> None:
    """Run the webhook sender alone."""
    settings = read_settings()
    from deploy.parts import webhooks

    raise typer.Exit(webhooks(settings))


@app.command("run")
def run_command(
    preset: Annotated[str | None, typer.Option(help="Name of a ready-made schema.", metavar="NAME")] = None,
    schema: Annotated[Path | None, typer.Option(help="JSON file with a schema.", metavar="FILE")] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="The document; - reads standard input. Without it: standard input when it is not a terminal, "
            "else the preset's first sample.",
        ),
    ] = None,
    layout: Annotated[str, typer.Option(help="context_first, schema_first or joint.")] = "context_first",
    scoring: Annotated[str, typer.Option(help="sequence or branch.")] = "sequence",
    temperature: Annotated[float, typer.Option(help="Divides the log-scores before the softmax.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="How many choices of a field to list.")] = 5,
    truncate: Annotated[str, typer.Option(help="A document that is too long: error, head or tail.")] = "error",
    as_json: Json = False,
) -> None:
    """Answer one document in this process, without a server."""
    settings = read_settings()
    from deploy.run import BadInput, read_request, run

    options = {
        "layout": layout,
        "scoring": scoring,
        "temperature": temperature,
        "top_k": top_k,
        "truncate": truncate,
    }
    with bad_usage(BadInput):
        request = read_request(preset, schema, context, options)
    raise typer.Exit(run(request, settings, as_json=as_json))


@app.command("evaluate")
def evaluate_command(
    schema: Annotated[Path, typer.Option(help="JSON file with a schema.", metavar="FILE")],
    data: Annotated[
        Path,
        typer.Option(help='Labelled records, one {"context": ..., "labels": {...}} a line.', metavar="FILE.jsonl"),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N records.", metavar="N")] = None,
    layout: Annotated[str, typer.Option(help="context_first, schema_first or joint.")] = "context_first",
    scoring: Annotated[str, typer.Option(help="sequence or branch.")] = "sequence",
    show_choices: Annotated[bool, typer.Option("--show-choices", help="List the choices in the prompt.")] = False,
    prior: Annotated[
        bool | None,
        typer.Option("--prior/--no-prior", help="Subtract the content-free prior. [default: but for booleans]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer labelled records in this process, and print how good the answers are."""
    settings = read_settings()
    from deploy.evaluate import evaluate
    from deploy.run import BadInput

    options = {"layout": layout, "scoring": scoring, "show_choices": show_choices, "prior": prior}
    with bad_usage(BadInput):
        figures = evaluate(schema, data, limit, options, settings)
    if as_json:
        show.print_json(figures)
    else:
        show.figures(figures)


@app.command("config")
def config_command(as_json: Json = False) -> None:
    """Print every setting: its value, where it comes from, and what it means."""
    from deploy.listing import config

    config(read_settings(), as_json=as_json)


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """Check this machine: what is wrong, and what to do about it."""
    settings = read_settings()
    from deploy.doctor import doctor

    raise typer.Exit(doctor(settings, as_json=as_json))


@models_app.callback()
def models_command(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        from deploy.listing import models

        models(read_settings(), as_json=as_json)


@models_app.command("pull")
def models_pull_command(
    name: Annotated[str | None, typer.Argument(help="Built-in name or hub id. [default: FIELDCAST_MODEL]")] = None,
    as_json: Json = False,
) -> None:
    """Get a model's files now, so that the first start does not have to."""
    settings = read_settings()
    from deploy.listing import pull

    pull(name or settings.model, settings, as_json=as_json)


@keys_app.callback()
def keys_command(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        from deploy.keys import list_keys

        list_keys(read_settings(), as_json=as_json)


@keys_app.command("new")
def keys_new_command(tenant: Annotated[str, typer.Argument()], as_json: Json = False) -> None:
    """Make a key for a tenant and print it, this once. With the first one, the API asks for keys."""
    from deploy.keys import BadName, new

    with bad_usage(BadName):
        new(tenant, read_settings(), as_json=as_json)


@keys_app.command("revoke")
def keys_revoke_command(name: Annotated[str, typer.Argument(metavar="TENANT|KEY")]) -> None:
    """Remove a tenant's keys, or the one that `fieldcast keys` lists so."""
    from deploy.keys import BadName, revoke

    with bad_usage(BadName):
        revoke(name, read_settings())


@presets_app.callback()
def presets_command(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is None:
        from deploy.listing import presets_list

        presets_list(as_json=as_json)


@presets_app.command("show")
def presets_show_command(name: Annotated[str, typer.Argument()], as_json: Json = False) -> None:
    """Print one preset: its fields, their choices, and a sample."""
    from deploy.listing import preset
    from presets import UnknownPreset

    with bad_usage(UnknownPreset):
        preset(name, as_json=as_json)


if __name__ == "__main__":
    main()

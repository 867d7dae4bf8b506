"""`headrace`: one group, whose commands load when they are used, so that `--help` answers at once.

Nothing of ours is imported before `use_own_packages` has run: another project's `models` may come first on
the path.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("models", "api", "workers", "migrations", "cli")


def use_own_packages() -> None:
    """Put the folder of this file first on the path, if another project's packages would be found instead.

    Ends the process with a readable line where that is too late.
    """
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is not None and not _is_ours(getattr(loaded, "__file__", None), name):
            _refuse(name, getattr(loaded, "__file__", None))
    # A missing one is looked up again too: an editable install may sit behind a path that hides it.
    if not all(_is_ours(_origin(name), name) for name in PACKAGES):
        sys.path.insert(0, str(ROOT))
        importlib.invalidate_caches()
    models = importlib.import_module("models")
    if getattr(models, "OWNER", None) != "headrace":
        _refuse("models", getattr(models, "__file__", None))


def _origin(name: str) -> str | None:
    found = PathFinder.find_spec(name)
    return None if found is None else found.origin


def _is_ours(origin: str | None, name: str) -> bool:
    return origin is not None and Path(origin).resolve() == ROOT / name / "__init__.py"


def _refuse(name: str, where: object) -> NoReturn:
    print(f"headrace: the package `{name}` of another project was imported first, from {where}: start "
          "headrace elsewhere, or take that folder off PYTHONPATH", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    # Children of `up` are started by this file's path: with `-m` the current folder would come first.
    use_own_packages()

import click  # noqa: E402

# name: (module, attribute, one line for --help)
COMMANDS = {
    "up": ("cli.up", "up", "Run the whole service here, in the foreground."),
    "api": ("cli.parts", "api", "Run the HTTP API."),
    "worker": ("cli.parts", "worker", "Run a worker of one hardware class."),
    "housekeep": ("cli.parts", "housekeep", "Run housekeeping: feed, sweep, deliver."),
    "models": ("cli.networks", "models", "Add, list, show, promote and remove networks."),
    "submit": ("cli.jobs", "submit", "Submit one job."),
    "jobs": ("cli.jobs", "jobs", "Show, list, cancel and retry jobs."),
    "keys": ("cli.keys", "keys", "Create, list and revoke API keys."),
    "tenants": ("cli.tenants", "tenants", "Create and list tenants, and set their quotas."),
    "db": ("cli.db", "db", "Upgrade, check, back up and restore the database."),
    "doctor": ("cli.doctor", "doctor", "Say what is configured, reachable and missing."),
}
EPILOG = ("models, submit and jobs talk to the service at HEADRACE_URL (http://127.0.0.1:8080), with the key "
          "in HEADRACE_KEY where it wants one. The others take their settings from HEADRACE_… in the "
          "environment: `headrace doctor` shows those in force.")


class Commands(click.Group):
    """Commands by name, imported on first use; errors of ours become one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from models import errors
        try:
            return super().invoke(ctx)
        except errors.HeadraceError as error:
            raise Failure(error) from error


class Failure(click.ClickException):
    """One of our errors as the command line shows it: what is wrong, and the exit code of the contract."""

    def __init__(self, error: Exception) -> None:
        from cli import codes
        from models import errors
        super().__init__(" ".join(str(error).split()))
        code = codes.FAILED
        if isinstance(error, errors.SettingsInvalid | errors.InvalidRequest | errors.SchemaUnfit):
            code = codes.WRONG_USE
        elif isinstance(error, errors.Unavailable):
            code = codes.OUT_OF_REACH
        elif isinstance(error, errors.HardwareMissing):
            code = codes.CANNOT_RUN
        self.exit_code = code  # type: ignore[misc]  # click means it as a constant of the class

    def show(self, file: Any = None) -> None:
        click.echo(f"headrace: {self.message}", file=file, err=file is None)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import models
        click.echo(f"headrace {models.__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the version.")
def headrace() -> None:
    """Asynchronous ML inference: jobs in over HTTP, batched on ONNX Runtime, results polled or pushed."""


def main() -> None:
    """The console script."""
    use_own_packages()
    headrace(prog_name="headrace")


if __name__ == "__main__":
    main()

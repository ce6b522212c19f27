"""`fieldcast keys`: a key is shown once, only its hash is kept, and revoking takes it out and nothing else."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.keys import ApiKeys
from deploy.cli import app

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def keys_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIELDCAST_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("FIELDCAST_API_KEYS_FILE", raising=False)
    return tmp_path / "data" / "api_keys"


def keys(*arguments: str) -> str:
    done = RUNNER.invoke(app, ["keys", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def new(tenant: str) -> dict[str, str]:
    made: dict[str, str] = json.loads(keys("new", tenant, "--json"))
    return made


def test_a_new_key_lets_its_tenant_in_and_only_its_hash_is_kept(keys_path: Path) -> None:
    ada, printed = new("ada"), keys("new", "bob").strip()
    known = ApiKeys(keys_path)
    assert [known.tenant_of(ada["key"]), known.tenant_of(printed)] == ["ada", "bob"]
    assert ada["key"] not in keys_path.read_text()
    assert ada["key"] != printed
    assert stat.S_IMODE(keys_path.stat().st_mode) == 0o600
    assert [one["tenant"] for one in json.loads(keys("--json"))] == ["ada", "bob"]
    assert ada["id"] in keys()


def test_revoking_takes_one_key_or_a_tenants_and_leaves_the_rest(keys_path: Path) -> None:
    first, second, bob = new("ada"), new("ada"), new("bob")
    keys_path.write_text("# ours\n" + keys_path.read_text().rstrip("\n"))
    eve = new("eve")  # after a last line without an end

    def let_in() -> list[str | None]:
        known = ApiKeys(keys_path)
        return [known.tenant_of(one["key"]) for one in (first, second, bob, eve)]

    assert let_in() == ["ada", "ada", "bob", "eve"]
    keys("revoke", first["id"])
    assert let_in() == [None, "ada", "bob", "eve"]
    keys("revoke", "ada")
    assert let_in() == [None, None, "bob", "eve"]
    assert keys_path.read_text().startswith("# ours\n")
    assert stat.S_IMODE(keys_path.stat().st_mode) == 0o600


@pytest.mark.parametrize("arguments", [["new", "no name"], ["new", ""], ["revoke", "nobody"]])
def test_a_name_that_cannot_be_used_is_bad_usage(arguments: list[str]) -> None:
    assert RUNNER.invoke(app, ["keys", *arguments]).exit_code == 2

"""API keys: whose a request is, who is kept out, and that to one tenant another's jobs are not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from service import api_client
from structlog.testing import capture_logs

from api.app import create_app
from api.authentication import OPEN
from api.keys import ApiKey, ApiKeys, digest_of
from worker import tenants
from worker.settings import Settings

pytestmark = pytest.mark.anyio

ADA, BOB = "fc_adas-own-key", "fc_bobs-own-key"
BODY = {"context": "The invoice is wrong.", "schema": {"angry": {"type": "boolean"}}}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def line(tenant: str, key: str) -> str:
    return f"{tenant} {digest_of(key)}\n"


@pytest.fixture
def keyed(settings: Settings) -> Settings:
    settings.keys_path.write_text("# who may ask\n\n" + line("ada", ADA) + line("bob", BOB))
    return settings


@pytest.mark.parametrize(
    ("headers", "type"),
    [
        ([], "key_missing"),
        ([("authorization", "")], "key_missing"),
        ([("authorization", "Bearer ")], "key_missing"),
        ([("authorization", f"Basic {ADA}")], "key_missing"),
        ([("authorization", f"Bearer {ADA}"), ("authorization", f"Bearer {ADA}")], "key_missing"),
        ([("authorization", "Bearer fc_made-up")], "key_unknown"),
        ([("authorization", f"Bearer {digest_of(ADA)}")], "key_unknown"),
        ([("authorization", b"Bearer \xff\xfe")], "key_unknown"),
    ],
)
async def test_who_brings_no_key_of_this_service_is_refused(headers: Any, type: str, keyed: Settings) -> None:
    async with api_client(keyed) as client:
        for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nowhere")):
            answer = await client.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (401, type)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"


async def test_what_probes_and_client_generators_read_is_open(keyed: Settings) -> None:
    async with api_client(keyed) as client:
        assert {path: (await client.get(path)).status_code for path in OPEN} == {
            "/healthz": 200,
            "/readyz": 503,  # no worker
            "/openapi.json": 200,
        }


async def test_without_a_file_everything_is_one_tenants_and_no_key_is_asked_for(client: httpx.AsyncClient) -> None:
    job_id = (await client.post("/v1/jobs", json=BODY)).json()["id"]
    assert tenants.owns(tenants.DEFAULT, job_id)
    assert (await client.get(f"/v1/jobs/{job_id}", headers=bearer("fc_whatever"))).status_code == 200


async def test_a_file_that_is_configured_and_not_there_lets_nobody_in(settings: Settings, tmp_path: Path) -> None:
    async with api_client(settings.model_copy(update={"api_keys_file": tmp_path / "mistyped"})) as client:
        assert (await client.get("/v1/models")).status_code == 401


async def test_to_another_tenant_a_job_is_not_there(keyed: Settings) -> None:
    """On every route that names a job."""
    paths = create_app(keyed).openapi()["paths"]
    named = [(method.upper(), path) for path in paths if "{job_id}" in path for method in paths[path]]
    assert len(named) >= 3
    async with api_client(keyed) as client:
        job = (await client.post("/v1/jobs", json=BODY, headers=bearer(ADA))).json()
        for method, path in named:
            answer = await client.request(method, path.format(job_id=job["id"]), headers=bearer(BOB))
            assert (answer.status_code, answer.json()["type"]) == (404, "job_not_found"), (method, path)
        found = await client.get(f"/v1/jobs/{job['id']}", headers=bearer(ADA))
        assert found.json() == {**job, "queue_position": 1}
        # Cancelled first, so that the stream of its events ends; queued again and deleted last.
        by_turn = sorted(named, key=lambda one: ("cancel" not in one[1], one[0] == "DELETE", "requeue" in one[1]))
        for method, path in by_turn:
            answer = await client.request(method, path.format(job_id=job["id"]), headers=bearer(ADA))
            assert answer.is_success, (method, path)


async def test_two_tenants_with_one_text_share_nothing(keyed: Settings, redis: Redis) -> None:
    async with api_client(keyed) as client:
        ids = [(await client.post("/v1/jobs", json=BODY, headers=bearer(key))).json()["id"] for key in (ADA, ADA, BOB)]
        assert ids[0][:16] == ids[1][:16] != ids[2][:16]
        texts = [key async for key in redis.scan_iter("fieldcast:document:*") if not key.endswith(b":users")]
        assert len(texts) == 2
        await client.delete(f"/v1/jobs/{ids[2]}", headers=bearer(BOB))
        assert [await redis.exists(key) for key in texts].count(1) == 1


async def test_a_key_ends_and_begins_without_a_restart(keyed: Settings) -> None:
    async def status(client: httpx.AsyncClient, key: str) -> int:
        return (await client.get("/v1/models", headers=bearer(key))).status_code

    async with api_client(keyed) as client:
        assert [await status(client, ADA), await status(client, BOB)] == [200, 200]
        keyed.keys_path.write_text(line("bob", BOB))
        assert [await status(client, ADA), await status(client, BOB)] == [401, 200]
        keyed.keys_path.write_text(line("ada", ADA) + line("bob", BOB))
        assert [await status(client, ADA), await status(client, BOB)] == [200, 200]
        keyed.keys_path.unlink()
        assert [await status(client, ADA), await status(client, BOB)] == [401, 401]


async def test_keys_are_asked_for_as_soon_as_there_is_a_file(settings: Settings) -> None:
    async with api_client(settings) as client:
        assert (await client.get("/v1/models")).status_code == 200
        settings.keys_path.write_text(line("ada", ADA))
        assert (await client.get("/v1/models")).status_code == 401


async def test_no_log_line_holds_a_key(keyed: Settings) -> None:
    keyed.keys_path.write_text(line("ada", ADA) + f"bob {BOB}\n")  # the key itself, by mistake
    with capture_logs() as lines:
        async with api_client(keyed) as client:
            await client.post("/v1/jobs", json=BODY, headers=bearer(ADA))
            await client.post("/v1/jobs", json=BODY, headers=bearer(BOB))
    assert any(one["action"] == "submit_job" and one["tenant"] == "ada" for one in lines)
    assert any(one["action"] == "keys_error" and "line 2" in one["problem"] for one in lines)
    assert not re.search(f"{ADA}|{BOB}|{digest_of(ADA)}", str(lines))


@pytest.mark.parametrize(
    "text",
    ["ada\n", f"ada {'0' * 63}\n", f"ada {'0' * 64} {'1' * 64}\n", f"-ada {'0' * 64}\n", b"\xff\n"],
    ids=["no hash", "a short hash", "two hashes", "no name", "not UTF-8"],
)
def test_a_line_that_cannot_be_read_gives_nobody_access(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    keys = ApiKeys(path)
    assert keys.required
    assert keys.tenant_of(ADA) is None


def test_two_names_with_one_tag_are_not_both_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tag: Callable[[str], str] = tenants.tag
    monkeypatch.setattr(tenants, "tag", lambda name: tag("ada"))  # two real names would take billions of tries
    (tmp_path / "keys").write_text(line("ada", ADA) + line("bob", BOB))
    keys = ApiKeys(tmp_path / "keys")
    assert [keys.tenant_of(ADA), keys.tenant_of(BOB)] == ["ada", None]


def test_a_key_of_the_service_s_own_is_in_no_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(line("ada", ADA))
    keys = ApiKeys(tmp_path / "keys", ApiKey("default", digest_of(BOB)))
    assert [keys.tenant_of(ADA), keys.tenant_of(BOB)] == ["ada", "default"]

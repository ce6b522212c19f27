"""Settings come from the environment; bad ones are refused by name, and secrets are never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from redis import Redis

from worker.main import slot
from worker.settings import MAX_SOCKET_PATH_BYTES, Settings

SECRET = "whsec_" + "QUFB" * 12


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("FIELDCAST_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("redis_url", "redis://example.com:6379/2", "redis://example.com:6379/2"),
        ("host", "0.0.0.0", "0.0.0.0"),
        ("port", "0", 0),
        ("worker_slot", "mini-2", "mini-2"),
        ("batch_rows", "8", 8),
        ("batch_tokens", "12000", 12000),
        ("claim_window", "10", 10),
        ("lease_s", "12.5", 12.5),
        ("heartbeat_s", "1", 1.0),
        ("hang_grace_s", "0.5", 0.5),
        ("interactive_share", "1", 1),
        ("data_dir", "/tmp/x", Path("/tmp/x")),
        ("webhook_allowed_ports", "[443, 8443]", (443, 8443)),
        ("webhook_retry_delays_s", "[1, 2.5]", (1.0, 2.5)),
    ],
)
def test_each_is_read_from_the_environment(
    name: str, text: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FIELDCAST_{name.upper()}", text)
    assert getattr(Settings(), name) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "http"),
        ("batch_rows", "0"),
        ("batch_rows", "many"),
        ("batch_tokens", "0"),
        ("claim_window", "0"),
        ("lease_s", "0"),
        ("heartbeat_s", "-1"),
        ("interactive_share", "0"),
        ("result_ttl_s", "0"),
        ("webhook_timeout_s", "0"),
        ("webhook_allowed_ports", '["https"]'),
        ("strategy", "fastest"),
    ],
)
def test_a_bad_value_is_refused_and_the_setting_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FIELDCAST_{name.upper()}", text)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert caught.value.errors()[0]["loc"][0] in (name, f"FIELDCAST_{name.upper()}")


@pytest.mark.parametrize(("lease_s", "heartbeat_s"), [(5, 5), (5, 4.9), (2, 5)])
def test_a_lease_that_would_run_out_between_two_heartbeats_is_refused(lease_s: float, heartbeat_s: float) -> None:
    with pytest.raises(ValidationError, match="heartbeat_s"):
        Settings(lease_s=lease_s, heartbeat_s=heartbeat_s)
    Settings(lease_s=2 * heartbeat_s, heartbeat_s=heartbeat_s)


def test_the_webhook_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDCAST_WEBHOOK_SECRET", SECRET)
    settings = Settings()
    assert settings.webhook_secret is not None
    assert settings.webhook_secret.get_secret_value() == SECRET
    for shown in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert SECRET not in shown
        assert "QUFB" not in shown


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1  # type: ignore[misc]


def test_the_socket_is_in_the_data_folder(tmp_path: Path) -> None:
    folder = Path("/tmp/fieldcast")
    settings = Settings(data_dir=folder)
    assert settings.socket_path == folder / "valkey.sock"
    assert settings.connection_url == "unix:///tmp/fieldcast/valkey.sock"


def test_a_folder_whose_path_is_too_long_for_a_socket_has_it_in_the_temporary_one() -> None:
    folder = Path("/srv") / ("long" * 30)
    path = Settings(data_dir=folder).socket_path
    assert len(str(path).encode()) <= MAX_SOCKET_PATH_BYTES
    assert not path.is_relative_to(folder)
    assert path == Settings(data_dir=folder).socket_path
    assert path != Settings(data_dir=folder / "other").socket_path


@pytest.mark.parametrize("name", ["with space", "a?b", "a#b", "100%25", "Übung"])
def test_the_url_leads_to_the_socket_whatever_the_folder_s_name(name: str) -> None:
    settings = Settings(data_dir=Path("/tmp") / name)
    with Redis.from_url(settings.connection_url) as redis:
        assert redis.connection_pool.connection_kwargs["path"] == str(settings.socket_path)


def test_a_redis_url_wins_over_the_embedded_server() -> None:
    assert Settings(redis_url="redis://example.com").connection_url == "redis://example.com"


def test_the_slot_is_the_host_s_name_and_safe_in_a_key() -> None:
    assert slot(Settings(worker_slot="my mac.local:1")) == "my-mac-local-1"
    assert slot(Settings())

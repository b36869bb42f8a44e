from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority, Signed
from support.waiting import patience

from loadmanager.cli.agent_command import local_url_of
from loadmanager.cli.service_runner import Listeners, listen, listen_at, tls_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings


@pytest.fixture
def own(tmp_path: Path) -> Signed:
    return Authority(tmp_path).sign("node")


def doors(own: Signed, **ports: Any) -> list[str]:  # noqa: ANN401 - as in a file
    """Return the schemes of a node's listeners, the advertised one first."""
    given = {"tlsCertificateFilePath": str(own.certificate), "tlsKeyFilePath": str(own.key), **ports}
    settings = load_settings(Settings, None, given)
    tls = tls_of(settings, settings.web_service_port_tls)
    opened = Listeners(settings, "127.0.0.1", "web_service_port", "web_service_port_tls", tls)
    opened.close()
    return [spec.scheme for spec in opened.specs]


def test_tls_listener_is_first_only_when_alone_or_configured(own: Signed) -> None:
    assert doors(own, webServicePort=0) == ["http"]
    assert doors(own, webServicePort=0, webServicePortTls=0) == ["http", "https"]
    assert doors(own, webServicePort=0, webServicePortTls=0, brokerClientTlsEnabled=True) == ["https", "http"]
    assert doors(own, webServicePort=None, webServicePortTls=0) == ["https"]


def test_bad_certificate_is_named_by_key_and_file(own: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    own.key.write_text("no PEM")
    with pytest.raises(SystemExit) as ended:
        doors(own, webServicePort=0, webServicePortTls=0)
    assert ended.value.code == 2
    assert f"tlsCertificateFilePath {own.certificate}, tlsKeyFilePath {own.key}: " in capsys.readouterr().err


def test_stale_unix_socket_is_replaced_with_mode_0660(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen_at("brokerSocketPath", path).close()
    assert path.is_socket()
    with listen_at("brokerSocketPath", path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert path.stat().st_mode & 0o777 == 0o660


def test_used_sockets_and_files_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used, other, long = tmp_path / "s", tmp_path / "notes", tmp_path / ("x" * 108)
    other.write_text("keep")
    with listen_at("brokerSocketPath", used):
        for path in (used, other, long):
            with pytest.raises(SystemExit) as ended:
                listen_at("brokerSocketPath", path)
            assert ended.value.code == 1
            assert f"brokerSocketPath {path}: " in capsys.readouterr().err
    assert other.read_text() == "keep"


@pytest.mark.parametrize(
    ("address", "host"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("::", "[::1]")],
)
def test_broker_gets_a_reachable_agent_address(address: str, host: str) -> None:
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listen("agentPort", address, 0) as listener:
        port = listener.getsockname()[1]
        assert local_url_of(listener) == f"http://{host}:{port}"
        socket.create_connection((host.strip("[]"), port), timeout=patience()).close()


def test_broker_gets_the_path_of_the_unix_socket(tmp_path: Path) -> None:
    with listen_at("brokerSocketPath", tmp_path / "s") as listener:
        assert local_url_of(listener) == f"unix:{tmp_path / 's'}"

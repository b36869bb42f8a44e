from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from socket import socketpair

import pytest
import trustme
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from loadmanager.errors import ConfigurationError
from loadmanager.store import paths
from loadmanager.store.kazoo_client import Sockets
from loadmanager.store.metadata_store import MAX_TRANSACTION_BYTES, Create, check_sizes
from loadmanager.store.zookeeper_acl import (
    Acls,
    grants_all,
    identities_of,
    letters_of,
    read_credentials,
    render,
)

KEY = "metadataStoreCredentials"
NODE, AGENT = Id("sasl", "lm"), Id("sasl", "agent")


@pytest.mark.parametrize("begins", ["file:", "file://"])
def test_credentials_come_from_a_file(tmp_path: Path, begins: str) -> None:
    path = tmp_path / "zk"
    path.write_text("lm:se:cret\n")
    found = read_credentials(KEY, f"{begins}{path}")
    assert found is not None
    assert (found.user, found.password) == ("lm", "se:cret")
    assert found.identity == Id("digest", "lm:NJ//uzlLVmmIYmsclz6XCWcB4vU=")
    assert "se:cret" not in f"{found} {found!r}"
    assert str(path) in str(found)


def test_credentials_come_from_a_variable_or_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK", "lm:secret")
    found = read_credentials(KEY, "sasl:env:ZK")
    assert found is not None
    assert found.identity == Id("sasl", "lm")
    assert read_credentials(KEY, "") is None


@pytest.mark.parametrize(
    ("source", "content", "says"),
    [
        ("lm:secret", None, "with sasl: in front for SASL, never credentials themselves"),
        ("secret", None, "expected file:///path/to/file or env:VARIABLE"),
        ("sasl:secret", None, "expected file:///path/to/file or env:VARIABLE"),
        ("env:NO_SUCH_VARIABLE", None, "there is no such environment variable"),
        ("file://{path}", None, "No such file or directory"),
        ("file://{path}", b"\xff\xfe:\xff", "not UTF-8 text"),
        ("file://{path}", b"", "expected user:password on one line"),
        ("file://{path}", b"lm", "expected user:password on one line"),
        ("file://{path}", b":secret", "expected user:password on one line"),
        ("file://{path}", b"lm:", "expected user:password on one line"),
        ("file://{path}", b"lm:secret\nother:secret", "expected user:password on one line"),
    ],
)
def test_invalid_credentials_are_rejected_and_never_shown(
    tmp_path: Path, source: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / "zk"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_credentials(KEY, source.format(path=path))
    assert str(refused.value).startswith(KEY)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_identities_have_the_form_of_access_lists() -> None:
    texts = ["digest:lm:1PnMEOEZbNjS83aOCx0jAsAs6Kw=", "sasl:lm/host@REALM", "x509:CN=lm,O=Example"]
    assert [f"{scheme}:{name}" for scheme, name in identities_of("metadataStoreNodeIds", texts)] == texts


@pytest.mark.parametrize("text", ["digest:lm:secret", "digest:lm", "world:anyone", "lm", "sasl:", ""])
def test_invalid_identities_are_rejected_and_no_password_is_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^metadataStoreNodeIds: ") as refused:
        identities_of("metadataStoreNodeIds", [text])
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "of_nodes", "of_agents"),
    [
        ("/", "cdrwa", "r"),
        (paths.ROOT, "cdrwa", "r"),
        (paths.BROKERS, "cdrwa", "cdr"),
        (paths.broker("b:1"), "ra", "rw"),
        (paths.EPOCH, "cdrwa", "r"),
        (paths.namespace("t/ns"), "cdrwa", "r"),
    ],
)
def test_permissions_match_the_table(path: str, of_nodes: str, of_agents: str) -> None:
    acl = Acls((NODE,), (AGENT,)).of(path)
    assert {(each.id, letters_of(each.perms)) for each in acl} == {(NODE, of_nodes), (AGENT, of_agents)}
    assert render(acl) == f"sasl:lm:{of_nodes}, sasl:agent:{of_agents}"


def test_identity_of_both_roles_has_the_permissions_of_both() -> None:
    (entry,) = Acls((NODE,), (NODE,)).of(paths.broker("b:1"))
    assert letters_of(entry.perms) == "rwa"


def test_access_is_open_without_identities() -> None:
    assert Acls().of(paths.EPOCH) == OPEN_ACL_UNSAFE
    assert grants_all(OPEN_ACL_UNSAFE, ())
    assert render(OPEN_ACL_UNSAFE) == "world:anyone:cdrwa"


def test_digest_with_a_hidden_hash_is_matched_by_user() -> None:
    ours = Id("digest", "lm:1PnMEOEZbNjS83aOCx0jAsAs6Kw=")
    assert grants_all([ACL(31, Id("digest", "lm:x"))], [ours])
    assert not grants_all([ACL(31, Id("digest", "other:x"))], [ours])
    assert not grants_all([ACL(1, Id("digest", "lm:x"))], [ours])


def test_access_lists_count_towards_the_transaction_size() -> None:
    acls = Acls(tuple(Id("x509", f"CN={number}" * 50) for number in range(20)))
    ops = [Create(f"/n{number}", b"") for number in range(1_000)]
    check_sizes(ops)
    assert acls.longest_bytes * len(ops) > MAX_TRANSACTION_BYTES
    with pytest.raises(Exception, match="at most 1040000 fit"):
        check_sizes(ops, extra_bytes=acls.longest_bytes)


@pytest.fixture
def tls_pair() -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Both ends of a connection over TLS."""
    ca = trustme.CA()
    of_server, of_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("here").configure_cert(of_server)
    ca.configure_trust(of_client)
    ends = socketpair()
    served: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: served.append(of_server.wrap_socket(ends[0], server_side=True)))
    thread.start()
    client = of_client.wrap_socket(ends[1], server_hostname="here")
    thread.join()
    yield served[0], client
    client.close()
    served[0].close()


def test_bytes_buffered_by_tls_count_as_readable(tls_pair: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    """Two answers may come as one record: the kernel has nothing more to say of the second one."""
    server, client = tls_pair
    server.sendall(b"ab")
    assert client.recv(1) == b"a"
    waiting, other = socketpair()
    with waiting, other:
        sockets = Sockets(1.0, None)
        assert sockets.select([client, waiting], [], [], 0.0) == ([client], [], [])
        other.send(b"!")
        assert sockets.select([client, waiting], [], [], 0.0) == ([client, waiting], [], [])
        assert client.recv(1) == b"b"
        assert sockets.select([client, waiting], [], [], 0.0) == ([waiting], [], [])

"""Keys of a Pulsar broker in a `broker.conf`, the environment of a container, a ConfigMap or Helm values.

Sources: Java's properties files; Pulsar's `apply-config-from-env.py`, which takes `PULSAR_PREFIX_` off a variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from loadmanager.errors import ConfigurationError

_ENTRY = re.compile(r"\s*((?:\\.|[^\\=:\s])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_PREFIX = "PULSAR_PREFIX_"
_NULL = "tag:yaml.org,2002:null"
_IS_YAML = re.compile(r"\.(ya?ml|json)", re.IGNORECASE)
_IS_CONF = re.compile(r".*\.(conf|properties|env)", re.IGNORECASE)
_IS_ENVIRONMENT = re.compile(rf"^\s*(export\s+\w+=|{_PREFIX})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """One key of a file; the last one counts where a key is there twice."""

    line: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class _Group:
    """The entries of one mapping or list of a YAML file, and the names on the way there."""

    names: tuple[str, ...]
    entries: list[ConfEntry]


def read_entries(path: Path, is_known: Callable[[str], bool]) -> list[ConfEntry]:
    """Return the keys of a broker that the file sets, each without `PULSAR_PREFIX_`.

    In YAML these are the groups of keys with one that `is_known`: those of a broker, if any says that it is one's.
    Raises `ConfigurationError` for a file without keys.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    documents = _parse_yaml(path, text)
    if documents is None:
        entries = list(_parse_conf(text, path.suffix))
    else:
        groups = [group for root in documents for group in _groups(root, ())]
        groups = [group for group in groups if any(is_known(entry.key) for entry in group.entries)]
        of_broker = [group for group in groups if any("broker" in name.lower() for name in group.names)]
        entries = [entry for group in of_broker or groups for entry in group.entries]
    if not entries:
        raise ConfigurationError(
            f"{path}: no keys of a Pulsar broker: expected a broker.conf, an environment of a container, a ConfigMap or"
            " Helm values"
        )
    return entries


def parse_properties(text: str) -> Iterator[ConfEntry]:
    """The entries of a properties file, each with the line it begins in."""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":
            continue
        while _goes_on(whole):
            whole = whole[:-1] + next(lines, (0, ""))[1].lstrip()
        found = _ENTRY.fullmatch(whole)
        if found is not None:
            yield ConfEntry(number, _unescape(found[1]), _unescape(found[2]).strip())


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(escaped: str) -> str:
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _LETTERS.get(escaped, escaped)


def _parse_conf(text: str, suffix: str = "") -> Iterator[ConfEntry]:
    """The entries of a properties file or of an environment, without the prefix."""
    if suffix != ".env" and _IS_ENVIRONMENT.search(text) is None:
        return parse_properties(text)
    found = ((number, _VARIABLE.fullmatch(line)) for number, line in enumerate(text.splitlines(), start=1))
    return (_entry(number, match[1], _unquoted(match[2].strip())) for number, match in found if match is not None)


def _entry(line: int, key: str, value: str) -> ConfEntry:
    return ConfEntry(line, key.removeprefix(_PREFIX), value)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _parse_yaml(path: Path, text: str) -> list[yaml.CollectionNode] | None:
    """Return the documents of a YAML or JSON file, None for a file of another format."""
    is_named_so = _IS_YAML.fullmatch(path.suffix) is not None
    try:
        documents = [root for root in yaml.compose_all(text, yaml.SafeLoader) if isinstance(root, yaml.CollectionNode)]
    except yaml.YAMLError as error:
        if is_named_so:
            raise ConfigurationError(f"{path}: not valid YAML: {error}") from None
        return None
    is_nested = any(
        isinstance(child, yaml.CollectionNode)
        for root in documents
        for child in (root.value if isinstance(root, yaml.SequenceNode) else [pair[1] for pair in root.value])
    )
    return documents if is_named_so or is_nested else None


def _groups(node: yaml.Node, names: tuple[str, ...]) -> Iterator[_Group]:
    """The groups in a YAML document: mappings, lists of `name` and `value`, lists of `KEY=value`, texts of files."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        names = (*names, *_object_name({key.value: value for key, value in pairs}))
        yield _Group(names, [entry for key, value in pairs for entry in _setting(key, value)])
        for key, value in pairs:
            if isinstance(value, yaml.ScalarNode) and _IS_CONF.fullmatch(key.value):
                first = value.start_mark.line + (value.style in {"|", ">"})
                entries = [replace(entry, line=entry.line + first) for entry in _parse_conf(value.value)]
                yield _Group((*names, key.value), entries)
            yield from _groups(value, (*names, key.value))
    elif isinstance(node, yaml.SequenceNode):
        yield _Group(names, [entry for each in node.value for entry in _variable(each)])
        for each in node.value:
            yield from _groups(each, names)


def _object_name(fields: dict[str, yaml.Node]) -> list[str]:
    """The name of an object of Kubernetes', in a list or none."""
    metadata = fields.get("metadata")
    pairs = metadata.value if isinstance(metadata, yaml.MappingNode) else []
    return [value.value for key, value in pairs if key.value == "name" and isinstance(value, yaml.ScalarNode)]


def _setting(key: yaml.ScalarNode, value: yaml.Node) -> Iterator[ConfEntry]:
    """A key with a value or a list of values."""
    line = key.start_mark.line + 1
    if isinstance(value, yaml.ScalarNode):
        yield _entry(line, key.value, "" if value.tag == _NULL else value.value.strip())
    elif isinstance(value, yaml.SequenceNode):
        parts = [each.value for each in value.value if isinstance(each, yaml.ScalarNode)]
        if parts:
            yield _entry(line, key.value, ",".join(parts))


def _variable(node: yaml.Node) -> Iterator[ConfEntry]:
    """A variable of a container's: `KEY=value`, or a mapping with `name` and `value`."""
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        found = _VARIABLE.fullmatch(node.value)
        if found is not None:
            yield _entry(line, found[1], found[2].strip())
    elif isinstance(node, yaml.MappingNode):
        fields = {key.value: value.value for key, value in node.value if isinstance(value, yaml.ScalarNode)}
        if fields.keys() >= {"name", "value"}:
            yield _entry(line, fields["name"], fields["value"].strip())

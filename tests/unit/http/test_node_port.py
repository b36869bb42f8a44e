from __future__ import annotations

import ast
from pathlib import Path
from typing import Protocol

import loadmanager.http
from loadmanager.leader import node_port


def test_nothing_is_in_the_port_that_http_does_not_use() -> None:
    ports = [each for each in vars(node_port).values() if isinstance(each, type) and Protocol in each.__bases__]
    offered = {name for each in ports for name in vars(each) if not name.startswith("_")}
    used = {
        node.attr
        for path in Path(loadmanager.http.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert "lookup_body" in offered
    assert sorted(offered - used) == []

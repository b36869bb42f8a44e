"""`loadmanager beside`: look at a Pulsar's balancing, judge it, and do it better if told to."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from aiohttp import web

from loadmanager.beside.admin import PulsarAdmin
from loadmanager.beside.checking import find_warnings, refuse_unfit
from loadmanager.beside.credentials import TlsOptions
from loadmanager.beside.reading import ReadOnlyStore
from loadmanager.beside.service import BesideNode
from loadmanager.beside.settings import PulsarSettings
from loadmanager.cli.exits import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.running import (
    ANSWER_S,
    BACKLOG,
    GRACE_S,
    keep_pauses_short,
    listen,
    open_state_store,
    start_up,
    until_told_to_stop,
    write_ready_file,
)
from loadmanager.config import BesideSettings
from loadmanager.errors import ConfigurationError, LoadManagerError, StoreError
from loadmanager.http.app import make_beside_app
from loadmanager.serving import ServerLimits, serve_within

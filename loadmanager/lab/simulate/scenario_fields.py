"""Base and field types of the models of scenario files. Times are seconds since the start."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from loadmanager.core.domain.names import BrokerId, parse_broker_id

_MOST_S = 366 * 86_400

Seconds = Annotated[float, Field(ge=0, le=_MOST_S, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, le=_MOST_S, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Broker = Annotated[BrokerId, AfterValidator(parse_broker_id)]
BundleRef = Annotated[str, Field(min_length=1, max_length=400)]
"""A bundle by its name, `tenant/namespace/0x.._0x..`, or by its position in the namespace, `tenant/namespace#0`."""
BundleRefs = tuple[BundleRef, ...]
"""Bundles; `tenant/namespace#*` stands for all initial bundles of the namespace."""


class Part(BaseModel):
    """Base of the models of a scenario file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

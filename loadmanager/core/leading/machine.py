"""What all the machines here are to their drivers."""

from __future__ import annotations

from typing import Protocol, TypeVar

_In_contra = TypeVar("_In_contra", contravariant=True)
_Instruction = TypeVar("_Instruction")


class Machine(Protocol[_In_contra, _Instruction]):
    """Stepped with an event, at a time; by itself it wants to be stepped with TIME at `wake_s`."""

    @property
    def wake_s(self) -> float | None: ...

    def step(self, event: _In_contra, now_s: float) -> list[_Instruction]: ...

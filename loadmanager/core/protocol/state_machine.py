"""Interface of the state machines, and how drivers do their actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

_In_contra = TypeVar("_In_contra", contravariant=True)
_Instruction = TypeVar("_Instruction")


class Machine(Protocol[_In_contra, _Instruction]):
    """Stepped with an event, at a time; by itself it wants to be stepped with TIME at `wake_s`."""

    @property
    def wake_s(self) -> float | None: ...

    def step(self, event: _In_contra, now_s: float) -> list[_Instruction]: ...


def do_all(actions: Iterable[_Instruction], do: Callable[[_Instruction], object]) -> None:
    """Do every action of a step, also those after one that fails; then raise the first error.

    The machine takes all of them for done: one that was left out would never be made up for.
    """
    errors = []
    for action in actions:
        try:
            do(action)
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
    if errors:
        raise errors[0]

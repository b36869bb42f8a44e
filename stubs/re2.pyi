from typing import Any

class error(Exception):  # noqa: N801, N818 - its name
    args: tuple[Any, ...]

class Options:
    max_mem: int
    log_errors: bool
    never_capture: bool

class _Regexp:
    @property
    def groups(self) -> int: ...
    def fullmatch(self, text: str) -> object | None: ...

def compile(pattern: str, options: Options | None = ...) -> _Regexp: ...  # noqa: A001 - its name
def escape(pattern: str) -> str: ...

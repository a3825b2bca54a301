"""What Ebbtide has by name, and what other packages add to it by entry points: planners and online policies."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from ebbtide.errors import EbbtideError, SettingError
from ebbtide.terminal import warn_user

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Registry(Mapping[str, _Function]):
    """Functions of this package and of others, sorted by name. Messages call one ``what``.

    Another package's is loaded when it is asked for. One with the name of one of ours is ignored, with an
    EbbtideWarning. Two with the same name are an error when the name is asked for.
    """

    def __init__(self, group: str, what: str, built_in: Mapping[str, _Function]) -> None:
        self._group, self._what, self._built_in = group, what, built_in

    @cached_property
    def _others(self) -> "dict[str, list[EntryPoint]]":
        from importlib.metadata import entry_points  # a fifth of the time that starting a planning process takes

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._built_in:
                warn_user(f"{_package(entry)} has a {self._what} {entry.name!r} as well; ours is used")
            else:
                found.setdefault(entry.name, []).append(entry)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._built_in.keys() | self._others.keys()))

    def __len__(self) -> int:
        return len(self._built_in) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._others

    def __getitem__(self, name: str) -> _Function:
        """Return a function. Raises KeyError for an unknown name, and SettingError, which names the package, if loading
        fails."""
        if name in self._built_in:
            return self._built_in[name]
        entries = self._others[name]
        packages = ", ".join(sorted(_package(entry) for entry in entries))
        if len(entries) > 1:
            raise SettingError(
                f"several packages have a {self._what} {name!r}: {packages}. Uninstall all but one of them."
            )
        try:
            function = entries[0].load()
        except (Exception, SystemExit) as error:  # any error that another package raises when it is imported
            raise SettingError(
                f"the {self._what} {name!r} of {packages} cannot be loaded: {type(error).__name__}: {error}. Mend or "
                "uninstall that package."
            ) from error
        if not callable(function):
            raise SettingError(f"the {self._what} {name!r} of {packages} is not a function: {entries[0].value}")

        @wraps(function)
        def named(*given: Any, **by_name: Any) -> Any:
            try:
                return function(*given, **by_name)
            except (EbbtideError, ValueError):
                raise
            except (Exception, SystemExit) as error:  # any error of another package
                raise SettingError(
                    f"the {self._what} {name!r} of {packages} failed: {type(error).__name__}: {error}"
                ) from error

        return named  # type: ignore[return-value]


def _package(entry: "EntryPoint") -> str:
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"

"""Machines that are documented somewhere, one TOML file each. Every figure there names its source, or *assumed*."""

from importlib.resources import files
from pathlib import Path

from ebbtide.errors import FileFormatError, SettingError, unknown_name
from ebbtide.ir.machine import Machine
from ebbtide.whole_file import is_special


def names() -> list[str]:
    """List the machines that come with Ebbtide."""
    return sorted(file.name.removesuffix(".toml") for file in files(__name__).iterdir() if file.name.endswith(".toml"))


def text_of(name: str) -> str:
    """Return the machine's file with its comments. Raises SettingError for a name that is not in ``names``."""
    if name not in names():
        raise unknown_name("machine", name, names(), ", or name a file")
    return (files(__name__) / f"{name}.toml").read_text()


def find_machine(name_or_file: str | Path) -> Machine:
    """Return a machine that comes with Ebbtide, by its name, or one from a file.

    Raises SettingError if it cannot be used.
    """
    name, path = str(name_or_file), Path(name_or_file)
    try:
        if name not in names() and is_special(path):
            raise SettingError(f"the machine {path} is a pipe or a device: write it to a file first")
        text = text_of(name) if name in names() or not path.exists() else path.read_text()
        return Machine.from_toml(text)
    except (OSError, UnicodeDecodeError, FileFormatError) as error:
        why = getattr(error, "strerror", None) or error  # the system's own message would name the file again
        raise SettingError(f"the machine {name} cannot be used: {why}") from error

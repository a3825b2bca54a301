"""A nameless file in memory, which this process shares with one that it starts.

A script may close descriptors that it did not open (``os.closerange``). Its next file then has that number. So the
descriptor is used only while it is the file that was made: another's file is neither read, written nor closed.

Left out: a script that does so on another thread between the look and the use.
"""

import os


class AnonymousFile:
    """A file in memory. Callers MUST close it."""

    def __init__(self, content: bytes = b"") -> None:
        self.fd = os.memfd_create("ebbtide")
        self._identity = self._seen()
        rest, at = memoryview(content), 0
        try:
            while rest:
                written = os.pwrite(self.fd, rest, at)  # the kernel writes two GiB at most
                rest, at = rest[written:], at + written
        except BaseException:
            self.close()
            raise

    def read(self) -> bytes | None:
        """Return the whole content; None where the script closed the file."""
        if not self._is_ours():
            return None
        content = b""
        while part := os.pread(self.fd, os.fstat(self.fd).st_size, len(content)):
            content += part
        return content

    def close(self) -> None:
        if self._is_ours():
            os.close(self.fd)
        self._identity = None

    def _is_ours(self) -> bool:
        return self._identity is not None and self._seen() == self._identity

    def _seen(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self.fd)
        except OSError:
            return None
        return found.st_dev, found.st_ino

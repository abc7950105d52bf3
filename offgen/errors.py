"""What stops a whole job. What one row causes is a records.RowError instead."""

from __future__ import annotations


class OffgenError(Exception):
    """A message that says what and where, and a hint of what to try. The front door prints it, never a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(OffgenError):
    """Wrong usage or configuration, input or model that cannot be opened: exit 2, nothing was written."""

    exit_code = 2


class JobError(OffgenError):
    """The job failed on its way; what had finished is safe: exit 1."""

    exit_code = 1

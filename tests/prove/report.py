"""What a proof found: claims that held or not, and figures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Lines in the order they were found."""

    lines: list[str] = field(default_factory=list)
    failures: int = 0

    def claim(self, what: str, holds: bool, found: object = "") -> None:
        """A claim and whether it holds; found: what was seen."""
        self.failures += not holds
        self.lines.append(f"{'holds' if holds else 'FAILS'}  {what}{f': {found}' if found != '' else ''}")

    def figure(self, what: str, value: object) -> None:
        """Something measured or counted that is no claim by itself."""
        self.lines.append(f"       {what}: {value}")

    @property
    def holds(self) -> bool:
        """Whether every claim held, and there was one."""
        return self.failures == 0 and any(not line.startswith(" ") for line in self.lines)

"""Seeds that once failed, each with what it found."""

REGRESSIONS: dict[int, str] = {}

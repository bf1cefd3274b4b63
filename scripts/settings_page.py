"""Writes docs/settings.md from the settings model: `python -m scripts.settings_page`.

A test compares the page with what this makes, so that neither can go on without the other.
"""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path

from spillway_schemas.settings import Setting, Settings, catalogue

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

OF_THE_MACHINE = {
    "state.root": (
        "`/dev/shm/spillway-UID`, with this user's number; `var/state` where `/dev/shm` cannot be "
        "written"
    ),
    "state.slots": "the number of cores",
    "state.budget_bytes": (
        "1 GiB, or less: all slots together take at most a quarter of the machine's memory "
        "(but 64 MiB at least)"
    ),
}
"""Defaults that differ from machine to machine, in words."""

TYPES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}

HEAD = """\
# Settings

<!-- Made by `python -m scripts.settings_page`: do not edit. -->

Settings come from four places. The later one wins:

1. the defaults below;
2. the settings file: `spillway.toml` of the working directory, or `spillway --config FILE`;
3. environment variables, `SPILLWAY_<SECTION>__<NAME>`, with two underscores in between;
4. flags: `spillway --set section.name=value ...`, before the command's name.

`spillway config show` prints every value with its unit and where it came from. A name that does
not exist is refused (exit code 2), with the name that was probably meant.

```toml
# spillway.toml
query = "symbol"

[state]
slots = 4
budget_bytes = "512MiB"

[kafka.options]
"security.protocol" = "SSL"
```

The same in the environment: `SPILLWAY_STATE__SLOTS=4`, and `SPILLWAY_KAFKA__OPTIONS` as a JSON
object. Tables such as `kafka.options` are merged key by key; no flag gives them, because every user
of the host can read the arguments of a command.

Relative paths belong to the folder of the settings file when they come from it or are defaults,
and to the working directory when they come from the environment or a flag.

`SPILLWAY_VAR` is not a setting but an environment variable: it names the folder for jars,
checkpoints and the text of the last error. Its default is `var/` of the checkout, and for an
installed package the platform's folder for a user's data (on Linux `~/.local/share/spillway`).
Nothing in it is needed to go on; `spillway setup` brings the jars back. The default warehouse and
the embedded broker's data lie under `var/` too, however, and `make clean` removes all of it: name
another `warehouse.root` for what you want to keep.

!!! note "When a change takes effect"
    A command reads the settings when it starts, so the stream takes a change up at its next start.
    A changed `query` is taken up [between sessions](your-query.md#change-a-query). `state.slots` is
    read when a warehouse is made; `stream.start`, `state.groups`, `state.shares` and the section
    `plan` are read then, and again for what a changed query brings: new topics, other joins. At
    any other time a change of these has no effect.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, settings in groupby(catalogue(), key=lambda each: each.section):
        parts.append(f"## {section or 'query'}\n")
        if section:
            about = Settings.model_fields[section].annotation
            first = inspect.cleandoc(about.__doc__ or "").partition("\n\n")[0]
            parts.append(f"{' '.join(first.split())}\n")
        parts += [entry(each) for each in settings]
    return "\n".join(parts).rstrip() + "\n"


def entry(setting: Setting) -> str:
    """One setting: its default and environment variable, what it is, why the default."""
    heading = f"### {setting.name}\n\n" if setting.section else ""
    kind = " or ".join(TYPES.get(each, each) for each in setting.type.split(" | "))
    unit = f" ({setting.unit})" if setting.unit not in ("", kind, "true/false") else ""
    return (
        f"{heading}{setting.description}\n\n"
        f"* **Default:** {default(setting)}\n"
        f"* **Type:** {kind}{unit}\n"
        f"* **Environment:** `{setting.env}`\n\n"
        f"*Why:* {setting.why}\n"
    )


def default(setting: Setting) -> str:
    """The default as one would write it."""
    if setting.name in OF_THE_MACHINE:
        return OF_THE_MACHINE[setting.name]
    value = setting.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if value == {}:
        return "an empty table"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page())

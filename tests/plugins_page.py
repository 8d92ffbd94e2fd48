"""The page of all plugins that accel-bench ships: `python tests/plugins_page.py` writes it anew."""

from __future__ import annotations

from pathlib import Path

from accel_bench.plugins.shipped import shipped

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"

HEAD = """\
# All plugins

List those that are installed, and what brings the others:

```sh
accel-bench plugins
```

`accel-bench plugins show NAME` prints a plugin's options and what it declares. "In the box":
`pip install accel-bench` brings it; else an extra does, `pip install 'accel-bench[EXTRA]'`.
[What each acceleration is good for](accelerations.md).

| plugin | fills | comes with | what it does | needs |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The page, from the list that ships: a row for each plugin, by what it fills and its name."""
    rows = []
    for name, one in shipped().items():
        fills = ", ".join(one.fills) or "stack"
        brought = f"`[{one.extra}]`" if one.extra else "in the box"
        needs = ", ".join(one.needs) or "-"
        rows.append((fills, name, f"| `{name}` | {fills} | {brought} | {one.does} | {needs} |"))
    return HEAD + "\n".join(text for _, _, text in sorted(rows)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")

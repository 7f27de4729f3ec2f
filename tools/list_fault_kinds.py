"""Prints the kinds of faults as Markdown: the part of docs/faults.md below its line "## Kinds"."""

from __future__ import annotations

from steadysum.cores.fault_kinds import KINDS, Kind, Knob

_HEAD = "| knob | default | meaning |\n|---|---|---|"


def markdown() -> str:
    """A section for each kind."""
    return "\n\n".join(_section(name, kind) for name, kind in KINDS.items()) + "\n"


def _section(name: str, kind: Kind) -> str:
    lines = [f"### {name}", "", kind.sentence]
    if kind.takes_site:
        lines += ["", f"Site: {kind.sites}. Without one: {kind.without}."]
    else:
        lines += ["", f"It takes no site. It acts on {kind.without}."]
    if kind.knobs:
        lines += ["", _HEAD, *(_row(knob_name, knob) for knob_name, knob in kind.knobs.items())]
    return "\n".join(lines)


def _row(name: str, knob: Knob) -> str:
    default = str(knob.default).lower() if isinstance(knob.default, bool) else str(knob.default)
    return f"| `{name}` | {default} | {knob.meaning} |"


if __name__ == "__main__":
    print(markdown(), end="")

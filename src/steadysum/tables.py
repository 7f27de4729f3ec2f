"""How every table of a terminal looks: a bold title at the left, a rule under the heads, no edge.

Not here: columns and rows, which belong to who has something to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["titled_table"]


def titled_table(title: str) -> Table:
    """A table without columns; the title is taken as it is, without markup.

    >>> table = titled_table("[1024, 256]")
    >>> table.add_column("kernel")
    >>> str(table.title), table.columns[0].header
    ('[1024, 256]', 'kernel')
    """
    from rich import box  # here, since a table's data is often wanted without it
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )

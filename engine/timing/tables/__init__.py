"""Tables of whole forward passes in the layout that is published for them, read, written and priced from."""

from engine.timing.tables.layout import Cell, read_cells, write_table
from engine.timing.tables.measured import write_measured
from engine.timing.tables.source import TableTiming, build, model_of
from engine.timing.tables.store import find_table, keep, table_model, table_names

__all__ = [
    "Cell",
    "TableTiming",
    "build",
    "find_table",
    "keep",
    "model_of",
    "read_cells",
    "table_model",
    "table_names",
    "write_measured",
    "write_table",
]

"""What a user hands over to be imported: a file, a folder or an archive, read with bounded memory and no trust."""

from engine.intake.badrows import BadRows
from engine.intake.documents import json_document, json_documents, trouble
from engine.intake.files import InputFile, Intake, open_intake
from engine.intake.rows import csv_rows, json_rows

__all__ = [
    "BadRows",
    "InputFile",
    "Intake",
    "csv_rows",
    "json_document",
    "json_documents",
    "json_rows",
    "open_intake",
    "trouble",
]

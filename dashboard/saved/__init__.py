"""Saved views: links with a name and a note, kept beside the runs of a store in ``views.jsonl``.

``book`` reads and appends, ``command`` is the command line. A row is an event (saved, renamed, deleted); nothing is
rewritten, so a name that was taken away can still be read in the file.
"""

from dashboard.saved.book import FILE, SavedView, Views, delete, read, rename, save

__all__ = ["FILE", "SavedView", "Views", "delete", "read", "rename", "save"]

"""One typed function per question, over the SQL in this folder.

``cohort``, ``percentiles``, ``passes``, ``coverage`` and ``cache`` belong to the pages of those names; ``identity``
compares records; ``totals`` holds sums over a population, ``outcomes`` their classes, ``ranges`` time spans. Functions
return a :class:`dashboard.store.Result` or a small dataclass; times are nanoseconds unless a name says otherwise.
"""

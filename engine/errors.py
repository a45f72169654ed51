"""The errors that a user is meant to read."""


class GapscopeError(Exception):
    """Bad input or an impossible request, told in one sentence: what, where, what was expected, what to do.

    The command line prints the message and exits non-zero; a page shows it in a red box. Anything else that
    is raised is a defect of the program.
    """


class UnwritableStore(GapscopeError):
    """A run cannot be written into a store, nor can another: work that writes several runs ends here."""

"""What surrounds every page: the mark, the style sheet, the heading, the pair bar, the panels beside it."""

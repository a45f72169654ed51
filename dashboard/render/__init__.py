"""What the pages show, as text: aligned tables, Markdown and JSON. One module per command that prints it."""

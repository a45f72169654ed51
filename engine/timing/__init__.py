"""How long a forward pass takes: one seam, several sources."""

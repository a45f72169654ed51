"""Who may reach the dashboard: where it listens, under which names, and who is let in."""

"""What tools say of their own runs: sources, and several tools at one server."""

"""What runs at the server, or beside it: the scheduler that records passes, and listeners to what engines publish."""

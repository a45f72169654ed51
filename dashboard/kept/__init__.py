"""What is kept of work that was done: answers in memory, answers in files, and tables worked out of a large run."""

"""What stands with a chart: the sentences on how to read it, its words, its copies and images."""

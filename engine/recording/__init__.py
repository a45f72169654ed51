"""Recording of real servers: what their clients see and what their schedulers do, as one run."""

"""Files of load generators: one module or package per tool; what they share is in run, flags and checks."""

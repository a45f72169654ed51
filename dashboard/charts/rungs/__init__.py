"""From a prediction to a measurement step by step: ladder, parity, alignment."""

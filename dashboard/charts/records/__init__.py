"""What a store holds besides numbers: runs and their import, saved views, hypotheses."""

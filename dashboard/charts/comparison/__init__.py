"""What pages on a pair as a whole show: verdict, contract, identity, cohort, numbers, repeats."""

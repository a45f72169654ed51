"""Speed of the replay core: workloads, separate costs, and pairs with another simulator."""

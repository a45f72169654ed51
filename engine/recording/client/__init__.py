"""The client of a recording: plays a workload against a real server, by the rules of the replay's client."""

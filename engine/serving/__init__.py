"""The server: scheduler, KV block pool and prefix cache, in a plain and an event-skipping form."""

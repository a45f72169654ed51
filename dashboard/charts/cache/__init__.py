"""The KV cache: its pool, its blocks, why blocks were reused or not."""

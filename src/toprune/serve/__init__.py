"""The HTTP server: bundles behind the interfaces that clients know, batched by executed cost."""

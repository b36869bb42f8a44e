"""HTTP client and server, TLS, authentication, limits, tracing and request ids."""

"""In-memory mirror of the metadata store, and the node's live settings."""

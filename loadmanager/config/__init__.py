"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the later one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are resolved once, where a process starts, and passed down; nothing reads them globally.
"""

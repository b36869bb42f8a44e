"""Settings: frozen models with bounds, Pulsar's keys and defaults wherever Pulsar has one.

Sources, the last one wins: defaults, the YAML file, environment variables (`LOADMANAGER_` and the key, in any case).
Settings are read once when a process starts, and passed as arguments; nothing reads them globally.
"""

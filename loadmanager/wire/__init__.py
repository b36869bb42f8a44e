"""Wire formats: znode payloads, HTTP bodies and files, in Pulsar's JSON wherever Pulsar has one."""

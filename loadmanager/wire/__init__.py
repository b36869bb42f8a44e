"""Everything that crosses a process: znode payloads and HTTP bodies, in Pulsar's JSON wherever Pulsar has one."""

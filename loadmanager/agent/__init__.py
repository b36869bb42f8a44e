"""The sidecar beside a broker: it registers and reports, hands out leases and grants, and passes unloads on."""

"""The pure core: it turns a snapshot of the cluster into a plan. No clock, socket, random source or global in here."""

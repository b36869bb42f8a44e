"""The pure core: turns a snapshot of the cluster into a plan, without clock, socket, random source or global state."""

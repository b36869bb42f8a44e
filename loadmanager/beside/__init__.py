"""A balancer beside a Pulsar: it reads what Pulsar's brokers write, and asks them through their REST interface."""

"""The contract with a broker (docs/broker-contract.md) as a test of any broker: its agent is played, rule by rule."""

"""Parts of the strategy Level: cost model, imbalance score, move search and hysteresis."""

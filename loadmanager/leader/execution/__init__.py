"""What is done to bundles: given an owner, taken from one, split and merged, and finished when left half done."""

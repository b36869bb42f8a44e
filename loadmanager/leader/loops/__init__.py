"""When bundles move, split and merge without being asked for, or as an operator wishes."""

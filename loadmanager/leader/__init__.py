"""The live node: it watches the cluster, answers lookups, and, while it leads, decides and carries out."""

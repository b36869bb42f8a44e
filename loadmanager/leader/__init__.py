"""A load-manager node: it mirrors the cluster, answers lookups and, while it leads, decides and executes.

`node.Node` puts it together. Packages, each of which imports only those below it: `loops` (when bundles move),
`execution` (unloads, assignments, splits and merges), `planning` (decisions), `election` (leadership and fenced
writes), `audit` (history and logs), `mirror` (the metadata store in memory).
"""

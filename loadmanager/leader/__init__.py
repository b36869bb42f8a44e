"""The live node: it watches the cluster, answers lookups, and, while it leads, decides and carries out.

`service.Node` puts it together. The rooms, each of which knows only those below it: `balancing` (when something moves),
`carrying_out` (what is done to bundles), `deciding` (what a decision needs), `term` (who leads and writes), `recording`
(what is written down of it), `picture` (the cluster as the store has it). `port` is all that HTTP sees of them.
"""

"""What the history suggests to change, each piece of advice with its numbers.

Bundles are judged by the rules that the leader goes by, with what they carried in all but the busiest tenth of their
hours at most: what is above a limit then is so again and again, and what is cold then is cold.

    tables ──▶ frames ──▶ shapes (of namespaces), thresholds, reports (of brokers) ──▶ frames ──▶ the table of advice
"""

"""The report of a run: tables read from Spark, findings, charts, and one HTML page."""

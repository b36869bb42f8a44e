"""What each bundle and namespace will carry: quantiles for every hour of the next week, and how wrong they would have
been so far.

    windows ──▶ frames ──▶ series ──▶ models ──▶ backtest ──▶ ahead ──▶ frames ──▶ tables

The tables are made in `frames`; all else is pure, and takes many series at once.
"""

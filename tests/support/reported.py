"""Contents of a report, without Spark: a fleet of six brokers over some days, of which the last ones are busy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from loadmanager.pipeline.step import StepResult, Summary

START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
DAY_MS, HOUR_MS, WINDOW_MS = 86_400_000, 3_600_000, 300_000
BROKERS = [f"b{number}:8080" for number in range(1, 7)]
BUNDLES = [f"public/shop-{n}/0x{n:x}0000000_0x{n + 1:x}0000000" for n in range(15)]
RECOMMENDED = """# why: <b>

loadBalancerLoadSheddingStrategy: TransferShedder
loadBalancerSheddingIntervalMinutes: 2
"""


def summary_of(days: int) -> Summary:
    ingest = StepResult("ingest", "run-1", notes=["left out: a: damaged"])
    return Summary("run-1", "/var/history", "/var/learned", START_MS, START_MS + days * DAY_MS, [ingest])


def contents_of(days: int, busy_days: int = 2) -> dict[str, pd.DataFrame]:
    """All tables; in the last `busy_days` one broker is above its threshold every evening."""
    rng = np.random.default_rng(7)
    at = START_MS + np.arange(days * 288) * WINDOW_MS
    hour = (at - START_MS) / HOUR_MS
    imbalance = 1.15 + 0.1 * np.sin(hour * np.pi / 12) + rng.gamma(1.2, 0.08, len(at))
    is_busy = (at >= START_MS + (days - busy_days) * DAY_MS) & (hour % 24 > 18)
    usage = np.where(is_busy, 0.9, 0.55 + 0.15 * np.sin(hour * np.pi / 12)) + rng.normal(0, 0.01, len(at))
    known = ~((hour > 30) & (hour < 36))
    return {
        "imbalance": pd.DataFrame(
            {
                "start_ms": at,
                "covered_s": 300.0,
                "brokers": len(BROKERS),
                "max_over_mean": imbalance,
                "worst_broker": "b2:8080",
                "worst_usage": usage,
                "worst_used_broker": "b2:8080",
                "overloaded_brokers": (usage > 0.85).astype(int),
            }
        )[known].reset_index(drop=True),
        "time_above": pd.DataFrame(
            {
                "what": ["imbalance", *["usage"] * 6],
                "subject": ["cluster", "b2:8080", *BROKERS[:1], *BROKERS[2:]],
                "threshold": [1.2, *[0.85] * 6],
                "above_s": [float((imbalance > 1.2).sum() * 300), float((usage > 0.85).sum() * 300), *[0.0] * 5],
                "observed_s": len(at) * 300.0,
                "share": [float((imbalance > 1.2).mean()), float((usage > 0.85).mean()), *[0.0] * 5],
            }
        ),
        "highest_reports": pd.DataFrame({"start_ms": at, "max_usage": usage + 0.05, "broker": "b3:8080"}),
        "broker_times": _over_time("broker", BROKERS, days, rng, 1.0),
        "bundle_times": _over_time("bundle", BUNDLES, days, rng, 4e7),
        "brokers": pd.DataFrame(
            {
                "broker": BROKERS[1:2] + BROKERS[:1] + BROKERS[2:],
                "mean_usage": np.linspace(0.7, 0.4, 6),
                "highest_mean": np.linspace(0.9, 0.55, 6),
                "highest_report": np.linspace(0.95, 0.6, 6),
                "mean_load": np.linspace(9e7, 4e7, 6),
                "covered_s": days * 86_400.0,
            }
        ),
        "hot_bundles": pd.DataFrame(
            {
                "start_ms": [START_MS + (days - 1) * DAY_MS] * 2,
                "bundle": ["public/shop-1/0x10000000_0x20000000", "public/<i>/0x0_0x1"],
                "load": [3.1e7, 1e6],
                "share": [0.12, 0.01],
            }
        ),
        "move_effects": _moves(400, rng),
        "flapping": pd.DataFrame({"bundle": ["public/shop-1/0x10000000_0x20000000"], "moves": [7], "returns": [3]}),
        "inconsistent_brokers": pd.DataFrame(
            {"broker": BROKERS[:1], "what": ["bundles"], "reports": [1000], "inconsistent": [0]}
        ),
        **_forecast(days, rng),
        "backtest": pd.DataFrame(
            {
                "kind": ["namespace", "namespace", "namespace", "bundle"],
                "key": ["public/<ns>", "public/shop-2", "public/new", "t/b/0x0_0x1"],
                "metric": "msg_throughput_out",
                "used": True,
                "coverage": [0.79, 0.5, None, 0.1],
                "points": [900, 100, 0, 5000],
                "why": ["", "", "short: needs 3 days of hourly windows, has 0.8", ""],
            }
        ),
        "capacity": _capacity(days, 30),
        "advice": _advice(),
        "league": pd.DataFrame(
            {
                "fleet": ["as-recorded"] * 3 + ["one-less"] * 3,
                "place": [1, 2, 3] * 2,
                "configuration": ["TransferShedder", "ThresholdShedder", "AvgShedder"] * 2,
                "hours": days * 24.0,
                "time_hot": [0.1, 0.22, 0.31, 0.2, 0.3, 0.42],
                "recommended": [True, *[False] * 5],
            }
        ),
        "recommendation": pd.DataFrame(
            {
                "fleet": ["as-recorded", "one-less"],
                "configuration": ["TransferShedder", None],
                "days": [20, 4],
                "seeds": [3, 3],
                "why": ["It is above.\nAnd more.", "4 whole days are known.\nAnd more."],
            }
        ),
        "cost_models": pd.DataFrame({"broker_class": ["8 cores"], "resource": ["cpu"], "base": [1.5]}),
        "rejected_rows": pd.DataFrame({"table": ["bundle_reports"], "reason": ["negative"], "count": [3]}),
    }


def _over_time(key: str, names: list[str], days: int, rng: np.random.Generator, scale: float) -> pd.DataFrame:
    columns = min(160, days * 288)
    length = max(1, days * 288 // columns) * WINDOW_MS
    start = START_MS + np.arange(columns) * length
    parts = []
    for number, name in enumerate(names):
        mean = (0.75 - 0.5 * number / len(names)) * (1 + 0.3 * np.sin(start / DAY_MS * 2 * np.pi)) * scale
        mean = mean * rng.uniform(0.9, 1.1, columns)
        parts.append(pd.DataFrame({key: name, "start": start, "end": start + length, "mean": mean, "high": mean * 1.1}))
    return pd.concat(parts, ignore_index=True)


def _moves(count: int, rng: np.random.Generator) -> pd.DataFrame:
    predicted = rng.uniform(1.05, 1.6, count)
    measured = predicted * rng.normal(1.02, 0.06, count)
    measured[0] = np.nan
    return pd.DataFrame({"bundle": "public/shop-1/0x1_0x2", "predicted_after": predicted, "measured_after": measured})


def _forecast(days: int, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    hours, ahead = np.arange(max(0, days - 7) * 24, days * 24), days * 24 + np.arange(24)
    hour_rows, made = [], []
    for number, name in enumerate(("public/<ns>", "public/shop-2", "public/new")):
        load = (100 + 50 * np.sin(hours * np.pi / 12)) / (number + 1) + rng.normal(0, 4, len(hours))
        hour_rows.append(pd.DataFrame({"namespace": name, "start_ms": START_MS + hours * HOUR_MS, "load": load}))
        q50 = (100 + 50 * np.sin(ahead * np.pi / 12)) / (number + 1)
        start = START_MS + ahead * HOUR_MS
        made.append(pd.DataFrame({"namespace": name, "start_ms": start, "q10": q50 - 5, "q50": q50, "q90": q50 + 5}))
    return {"namespace_hours": pd.concat(hour_rows), "namespace_forecasts": pd.concat(made[:2], ignore_index=True)}


def _capacity(days: int, ahead: int) -> pd.DataFrame:
    parts = []
    for number, quantile in enumerate((0.1, 0.5, 0.9)):
        start = START_MS + (days + np.arange(ahead)) * DAY_MS
        needed = 5 + number + np.arange(ahead) // 12
        day = pd.to_datetime(start, unit="ms").strftime("%Y-%m-%d")
        small = day[needed > len(BROKERS)]
        parts.append(
            pd.DataFrame(
                {
                    "day": day,
                    "start_ms": start,
                    "quantile": quantile,
                    "needed": pd.array(needed, dtype="Int64"),
                    "have": len(BROKERS),
                    "resource_first": "cpu",
                    "exhausted_on": small[0] if len(small) else None,
                    "exhausted_on_n1": None,
                    "headroom": 0.3,
                    "basis": f"{days} whole days",
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _advice() -> pd.DataFrame:
    kinds = ["merge", "quiet_reports", "split", "split", "unsplittable"]
    subjects = [
        "public/shop-1/0x30000000_0x40000000",
        "b3:8080",
        "public/shop-1/0x00000000_0x10000000",
        "public/shop-1/0x20000000_0x30000000",
        "public/shop-1/0x10000000_0x20000000",
    ]
    return pd.DataFrame({"kind": kinds, "subject": subjects, "text": "By what it carries & more", "evidence": "{}"})

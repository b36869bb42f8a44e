"""Load forecasts: models, their back-test, and prediction intervals. Pure, for many series at once."""

"""The library under the flows: types, teams, learning, engines. Knows neither Prefect, MLflow nor DVC."""

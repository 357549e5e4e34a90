"""Tracking URIs that no store can answer to are refused with the configuration."""

from __future__ import annotations

import importlib.metadata

import pytest

from aurora_core.config import RunConfig
from aurora_core.errors import ConfigError
from aurora_core.tracking_uri import DATABASES, OTHERS, PLUGIN_GROUP, check_tracking_uri


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////somewhere/mlflow.db",
        "http://localhost:5000",
        "HTTPS://me:secret@mlflow.example",
        "file:///somewhere/mlruns",
        "databricks://profile",
        "databricks",
        "./mlruns",
        "somewhere/mlruns",
    ],
)
def test_stores_that_mlflow_knows_are_taken(uri):
    check_tracking_uri(uri)


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("ftp://x", "MLflow has no store for the scheme 'ftp'; it knows .*http, https.*sqlite"),
        ("sqlit:///x.db", "scheme 'sqlit'; did you mean 'sqlite'\\?"),
        ("postgres://me@host/db", "scheme 'postgres'; did you mean 'postgresql'\\?"),
        ("http://[x", "this is no URI"),
        ("://x", "no store for the scheme ''"),
        (" ", "an empty text names no store; use null"),
        ("mysql+abacus://me@host/db", "knows no such database or driver"),
        ("postgresql+pg8000://me@host/db", "driver 'pg8000' is not installed; install it"),
    ],
)
def test_what_mlflow_has_no_store_for_is_refused_at_its_path(uri, sentence):
    with pytest.raises(ConfigError, match=f"tracking.uri: .*{sentence}"):
        RunConfig.quickstart([f"tracking.uri={uri!r}"])


def test_schemes_of_other_packages_are_known(monkeypatch):
    def entry_points(*, group):
        assert group == PLUGIN_GROUP
        return [importlib.metadata.EntryPoint("arn", "module:Store", group)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    check_tracking_uri("arn:aws:sagemaker:eu:1:mlflow/x")


def test_the_schemes_are_those_of_the_mlflow_that_is_installed():
    utils = pytest.importorskip("mlflow.tracking._tracking_service.utils")
    assert set(utils._tracking_store_registry._registry) - {""} == {*DATABASES, *OTHERS}

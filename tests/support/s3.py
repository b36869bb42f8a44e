"""An S3 server in this process, with one bucket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET, REGION, KEY = "fleet", "us-east-1", "test"


@contextmanager
def an_s3_server() -> Iterator[str]:
    """Return its endpoint, such as `http://127.0.0.1:9000`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY}
        boto3.client("s3", region_name=REGION, endpoint_url=endpoint, **keys).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.stop()


def url_of(endpoint: str, path: str) -> str:
    """Return the URL of a path in the bucket, for processes without the settings of the environment."""
    place = endpoint.removeprefix("http://")
    return f"s3://{KEY}:{KEY}@{BUCKET}/{path}?endpoint_override={place}&scheme=http&region={REGION}"

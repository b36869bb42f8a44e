#!/bin/sh
# Installs the package from SOURCE into a virtual environment at TARGET, at the versions the tests ran with, with what the
# EXTRAS need (agent; node,fast).
# usage: install.sh SOURCE TARGET EXTRAS
set -eu
source=$1
target=$2
extras=$3
python3 -m venv "$target"
"$target/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    --constraint "$source/constraints.txt" "$source[$extras]"
"$target/bin/python" -m compileall -q "$target/lib"

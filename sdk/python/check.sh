#!/bin/sh
# Builds the wheel, installs it in a fresh environment, and runs on it all that CI wants: ruff, mypy, the tests.
# NOWSERVING: the program whose `dev` the scenarios run against. Arguments go to pytest.
set -eu
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv --without-pip "$folder/env"
bin="$folder/env/bin"
pip() { python3 -m pip -q --disable-pip-version-check "$@"; }
pip --python "$bin/python" install --no-compile mypy==2.4.1 ruff==0.17.6 pytest "${NATS_PY:-nats-py==2.16.0}"
pip --python "$bin/python" wheel --no-deps --wheel-dir "$folder/dist" .
pip --python "$bin/python" install "$folder"/dist/*.whl
"$bin/ruff" format --check src tests
"$bin/ruff" check src tests
"$bin/mypy" src tests
# The folder `src` is not on the path: what is tested is what the wheel has.
"$bin/python" -c "import nowserving, sys; sys.exit('site-packages' not in nowserving.__file__)"
"$bin/pytest" -q -p no:cacheprovider "$@" tests

#!/usr/bin/env bash
# A fit on a file of which two processes stream a half each, on two devices of their own: `bash two_processes.sh`.
# ROWS=20000 makes it smaller, PYTHON=… takes another Python. On several machines only the address differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-$(ls ../.venv/bin/python 2>/dev/null || command -v python3)}
ROWS=${ROWS:-200003}
export JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2
export PYTHONPATH=..${PYTHONPATH:+:$PYTHONPATH}

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
"$PYTHON" two_processes.py "$folder" --rows "$ROWS"

port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$PYTHON" two_processes.py "$folder" --process 0 --port "$port" &
first=$!
"$PYTHON" two_processes.py "$folder" --process 1 --port "$port" &
wait $! && wait "$first"

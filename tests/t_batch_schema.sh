#!/bin/sh
# Demanded calls and schemas through `laguna-offload batch` and the nano model.
command -v python3 >/dev/null || { echo "1..0 # SKIP no python3"; exit 0; }
exec python3 "${srcdir:-.}/tests/batch_schema.py" "${srcdir:-.}"

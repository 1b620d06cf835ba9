#!/usr/bin/env bash
# Everything that a machine with a GPU is asked, on a machine that has torch already and is lent for minutes:
#
#     bench/gpu/all.sh [test|bench]     PYTHON (python3) has torch for CUDA; nothing is downloaded
#
# Each part takes 9 minutes at most, without the build; without an argument both run. Results come to bench/results after each check and,
# where OUT names a folder, there too, with the output as gpu-PART.log. The status is 1 when a check failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
PYTHON=${PYTHON:-python3}
GPU_FLAGS=${GPU_FLAGS:-}
status=0
logs=${OUT:-build}
mkdir -p build
export PYTHONUNBUFFERED=1

make -s -j"$(nproc)" all >build/make.log 2>&1 || {
    tail -n 30 build/make.log
    exit 1
}
for part in ${1:-test bench}; do
    timeout -k 10 540 make -s "gpu-$part" PYTHON="$PYTHON" GPU_FLAGS="$GPU_FLAGS" 2>&1 | tee "$logs/gpu-$part.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
done
exit $status

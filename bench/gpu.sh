#!/bin/sh
# A few minutes on a GPU: how fast models of random weights, from tiny to 1.5 billion parameters, sample and learn there, in what
# memory, at what share of the GPU's peak, beside transformers' generate. Needs a CUDA build of torch and nothing from a hub.
#
#     sh bench/gpu.sh [FOLDER]        results as a table, and as JSON lines in FOLDER/gpu.jsonl
set -eu
here=$(dirname "$0")
out=${1:-outputs/bench}
mkdir -p "$out"
python -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else "torch sees no GPU here; bench/gpu.py --device cpu tries the script")'
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for size in tiny 135m 0.5b 1.5b; do
    python "$here/gpu.py" --size "$size" --out "$out/gpu.jsonl"
done
